/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "types.h"

/* 802.1Q and 802.1ad tags that the card leaves in a frame. Only those of uplinks are ours. They
 * are taken off to read the packet. The stack gets them back, because its VLAN devices go by
 * them. So does an answer, which leaves by the same VLAN. An encapsulated packet has the tag of
 * its next hop instead.
 *
 * The agent tells cards to leave the tags in. What a card takes off nevertheless, XDP cannot
 * see: the kernel shows it only to programs that are bound to one device, from Linux 6.8 on.
 */

#define VLAN_TAG_LENGTH 4

static __always_inline int is_vlan(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* Reads the tags and returns the EtherType behind them, or zero where they are cut off or
 * too many.
 */
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
	return is_vlan(protocol) ? 0 : protocol;
}

/* What tells VLANs apart: a tag without its priority. */
#define VLAN_ID_MASK ((__u32)bpf_htons(0x0fff) << 16 | 0xffff)

/* A tag of VLAN 0 has a priority alone (802.1Q): the frame is one without a tag. */
static __always_inline int is_priority_tag(__be32 tag)
{
	return !(tag >> 16 & bpf_htons(0x0fff));
}

/* Reports whether the tags, if any, are those of an uplink. */
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

/* The uplink by which the stack sees the frame come in, or zero for another VLAN's. The frame
 * came in without the tags that XDP took off.
 */
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

/* Moves the Ethernet addresses: over tags that go, or, if negative, to make room for some. */
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
