/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "address.h"
#include "geneve.h"
#include "next_hop.h"
#include "outer_header.h"
#include "settings.h"
#include "tunnel_tag.h"
#include "verdict.h"

/* Makes room behind the Ethernet header, whose addresses stay, and returns it, or NULL. */
static __always_inline void *make_room(struct xdp_md *ctx, const struct packet *packet,
				       const int overhead, __u32 extra, __be16 protocol)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ethhdr old;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return NULL;
	old = *eth;
	old.h_proto = protocol;
	if (bpf_xdp_adjust_head(ctx, (int)packet->l3 - (int)sizeof(old) - overhead - (int)extra))
		return NULL;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) + overhead > (void *)(long)ctx->data_end)
		return NULL;
	*eth = old;
	return eth + 1;
}

static __always_inline int write_high(struct xdp_md *ctx, struct tunnel *tunnel, __u32 high)
{
	struct geneve_high *word = (void *)(tunnel + 1);

	if (!high)
		return 0;
	if ((void *)(word + 1) > (void *)(long)ctx->data_end)
		return -1;
	word->path = bpf_htonl(high);
	return 0;
}

/* Called last, because the tag covers the other headers. */
static __always_inline int write_tag(struct xdp_md *ctx, __u32 number, const int overhead,
				     __u32 extra)
{
	const __u32 udp = sizeof(struct ethhdr) + overhead - sizeof(struct tunnel);
	const __u32 family = overhead == OVERHEAD_IPV4 ? ADDRESS_FAMILY_IPV4 : ADDRESS_FAMILY_IPV6;
	struct tunnel *tunnel;
	__u64 tag;

	if (!number)
		return 0;
	tag = frame_tag(ctx, number, udp, sizeof(struct ethhdr) + overhead + extra, family);
	tunnel = (void *)(long)ctx->data + udp;
	if ((void *)(tunnel + 1) > (void *)(long)ctx->data_end)
		return -1;
	tag_write(&tunnel->tag, tag);
	return 0;
}

static __always_inline int send_encapsulated(struct xdp_md *ctx, struct packet *packet,
					     const struct self *self, const struct node *node,
					     const int overhead)
{
	struct outer outer = outer_of(packet, self);
	const __u32 extra = outer.length - packet->length;
	struct next_hop hop = {};
	int verdict;

	if (hop_is_prepared(node) && accepts_frame(ctx, self, node->ifindex))
		verdict = next_hop_prepared(ctx, packet, node, overhead + extra, &hop);
	else
		verdict = next_hop_routed(ctx, packet, self, node, overhead, &hop);
	if (verdict)
		return verdict;
	if (overhead == OVERHEAD_IPV4) {
		struct iphdr *ip = make_room(ctx, packet, overhead, extra, bpf_htons(ETH_P_IP));

		if (!ip)
			return drop(DROP_HEADROOM);
		write_outer_ipv4(ip, &outer, self->ipv4, node->ipv4);
		write_tunnel((void *)(ip + 1), &outer, extra);
		if (write_high(ctx, (void *)(ip + 1), outer.path.high))
			return drop(DROP_HEADROOM);
	} else {
		struct ipv6hdr *ip = make_room(ctx, packet, overhead, extra, bpf_htons(ETH_P_IPV6));

		if (!ip)
			return drop(DROP_HEADROOM);
		write_outer_ipv6(ip, &outer, &self->ipv6, &node->ipv6);
		write_tunnel((void *)(ip + 1), &outer, extra);
		if (write_high(ctx, (void *)(ip + 1), outer.path.high))
			return drop(DROP_HEADROOM);
	}
	if (write_tag(ctx, outer.key, overhead, extra))
		return drop(DROP_HEADROOM);
	return transmit(ctx, &hop);
}

__noinline int encapsulate(struct xdp_md *ctx, struct packet *packet, const struct self *self,
			   __u32 id)
{
	struct node *node;

	if (!packet || !self)
		return XDP_ABORTED;
	trace_node(id);
	node = bpf_map_lookup_elem(&nodes, &id);
	if (!node)
		return drop(DROP_NODE_UNKNOWN);
	if (packet->length > 0xffff - OVERHEAD_IPV6 - OVERHEAD_HIGH)
		return drop(DROP_PACKET_TOO_BIG);
	if (self->ipv4 && node->ipv4)
		return send_encapsulated(ctx, packet, self, node, OVERHEAD_IPV4);
	if (!node->ipv4 && address_is_zero(&node->ipv6))
		return drop(DROP_NODE_UNKNOWN);
	if (address_is_zero(&self->ipv6) || address_is_zero(&node->ipv6))
		return drop(DROP_NODE_FAMILY);
	return send_encapsulated(ctx, packet, self, node, OVERHEAD_IPV6);
}
