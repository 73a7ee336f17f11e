/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "types.h"

/* 802.1Q and 802.1ad tags in frames. Only tags of uplinks are ours. They are removed for parsing,
 * and restored for the stack, whose VLAN devices need them, and for replies on the same VLAN.
 * Encapsulated packets get the tag of their next hop.
 *
 * The agent disables VLAN offload, because XDP does not see tags that a NIC has stripped: only
 * device-bound programs do, from Linux 6.8 on.
 */

#define VLAN_TAG_LENGTH 4

static __always_inline int is_vlan(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* Returns 0 if the tags are truncated, and the EtherType of a tag if there are too many. */
static __always_inline __be16 read_tags(struct xdp_md *ctx, struct packet_slot *slot,
					__be16 protocol)
{
	for (int i = 0; i < VLAN_TAGS; i++) {
		__be16 *tag = (void *)(long)ctx->data + sizeof(struct ethhdr) + i * VLAN_TAG_LENGTH;

		if (!is_vlan(protocol))
			return protocol;
		if ((void *)(tag + 2) > (void *)(long)ctx->data_end)
			return 0;
		slot->tag[i] = (__u32)tag[0] << 16 | protocol;
		slot->tags = i + 1;
		protocol = tag[1];
	}
	return protocol;
}

/* Mask of a tag without its priority. */
#define VLAN_ID_MASK ((__u32)bpf_htons(0x0fff) << 16 | 0xffff)

/* VLAN 0 is a priority tag only (802.1Q): the frame is untagged. */
static __always_inline int is_priority_tag(__be32 tag)
{
	return !(tag >> 16 & bpf_htons(0x0fff));
}

/* Reports whether the frame is untagged or has the tags of an uplink. */
static __always_inline int tags_are_ours(const struct xdp_md *ctx, struct packet_slot *slot)
{
	__u32 *uplink;

	if (!slot->tags || (slot->tags == 1 && is_priority_tag(slot->tag[0])))
		return 1;
	slot->vlan.ifindex = ctx->ingress_ifindex;
#pragma unroll
	for (int i = 0; i < VLAN_TAGS; i++)
		slot->vlan.tag[i] = slot->tag[i] & VLAN_ID_MASK;
	uplink = bpf_map_lookup_elem(&vlans, &slot->vlan);
	if (!uplink)
		return 0;
	slot->uplink = *uplink;
	return 1;
}

/* Returns 0 for a tag of another VLAN. XDP saw the frame without an offloaded tag. */
static __always_inline __u32 uplink_of(const struct __sk_buff *skb)
{
	struct vlan_key key = { .ifindex = skb->ifindex };
	__u32 *uplink;

	if (!skb->vlan_present)
		return skb->ifindex;
	key.tag[0] = ((__u32)bpf_htons(skb->vlan_tci) << 16 | skb->vlan_proto) & VLAN_ID_MASK;
	if (is_priority_tag(key.tag[0]))
		return skb->ifindex;
	uplink = bpf_map_lookup_elem(&vlans, &key);
	return uplink ? *uplink : 0;
}

/* Moves the Ethernet addresses over removed tags, or to make room for tags if negative. */
static __noinline long move_addresses(struct xdp_md *ctx, int bytes)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ethhdr old;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	old = *eth;
	if (bpf_xdp_adjust_head(ctx, bytes))
		return -1;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(eth, &old, 2 * ETH_ALEN);
	return 0;
}

static __always_inline long take_tags(struct xdp_md *ctx, struct packet_slot *slot)
{
	if (!slot->tags)
		return 0;
	slot->packet.l3 = sizeof(struct ethhdr);
	return move_addresses(ctx, slot->tags == 1 ? VLAN_TAG_LENGTH : 2 * VLAN_TAG_LENGTH);
}

static __always_inline long put_tags(struct xdp_md *ctx, const struct packet_slot *slot)
{
	__be32 *tag;

	if (move_addresses(ctx, slot->tags == 1 ? -VLAN_TAG_LENGTH : -2 * VLAN_TAG_LENGTH))
		return -1;
	tag = (void *)(long)ctx->data + 2 * ETH_ALEN;
	if ((void *)(tag + 2) > (void *)(long)ctx->data_end)
		return -1;
	tag[0] = slot->tag[0];
	if (slot->tags > 1)
		tag[1] = slot->tag[1];
	return 0;
}
