/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "clock.h"
#include "count.h"
#include "geneve.h"
#include "maps.h"
#include "outer_header.h"
#include "settings.h"
#include "trace.h"
#include "verdict.h"

/* Next hop to a node: prepared by the agent, from the kernel's FIB, or resolved by the kernel. */

/* Reports whether a prepared next hop exists and the agent is alive. */
static __always_inline int hop_is_prepared(const struct node *node)
{
	__u32 zero = 0;
	__u64 *beat = bpf_map_lookup_elem(&hop_lease, &zero);

	if (!node->ifindex || !beat)
		return 0;
	return bpf_jiffies64() - *beat < HOP_SECONDS * ticks_per_second;
}

/* Pseudo-ifindex of the interface that the frame arrived on, as the stack sees it. */
#define INGRESS_IFINDEX 0

/* Passes the frame with metadata to the tcx ingress program, which redirects it to a next hop that
 * the kernel resolves. The stack itself would drop it as a martian, because its source is an
 * address of this node.
 */
static __always_inline int pass_to_kernel(struct xdp_md *ctx, __u32 ifindex)
{
	struct kernel_redirect *note;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*note)))
		return drop(DROP_XDP_METADATA);
	note = (void *)(long)ctx->data_meta;
	if ((void *)(note + 1) > (void *)(long)ctx->data)
		return drop(DROP_XDP_METADATA);
	note->magic = KERNEL_REDIRECT_MAGIC;
	note->ifindex = ifindex;
	trace_step(TRACE_TO_KERNEL);
	trace_interface(ifindex == INGRESS_IFINDEX ? ctx->ingress_ifindex : ifindex);
	count_event(EVENT_PASSED_TO_KERNEL);
	return XDP_PASS;
}

/* Reports whether XDP_TX sends by the interface, or by the bond of the arrival interface. */
static __always_inline int leaves_by(const struct xdp_md *ctx, __u32 ifindex)
{
	__u32 ingress = ctx->ingress_ifindex;
	struct uplink *member;

	if (ifindex == ingress)
		return 1;
	member = bpf_map_lookup_elem(&uplinks, &ingress);
	return member && member->master == ifindex;
}

/* Reports whether the frame has XDP fragments. */
static __always_inline int is_split(struct xdp_md *ctx)
{
	__u64 linear = ctx->data_end - ctx->data;

	return bpf_xdp_get_buff_len(ctx) > linear;
}

/* Some drivers drop redirected frames with XDP fragments. */
static __always_inline int accepts_frame(struct xdp_md *ctx, const struct self *self, __u32 ifindex)
{
	struct uplink *uplink;

	if (ifindex == ctx->ingress_ifindex)
		return !(self->flags & SELF_NO_TRANSMIT);
	uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	if (!uplink || !(uplink->flags & UPLINK_ACCEPTS_REDIRECTS))
		return 0;
	return leaves_by(ctx, ifindex) || !is_split(ctx);
}

/* mtu is the path MTU to the node. The ICMP error to the client has the rest. */
static __always_inline int too_big(struct packet *packet, __u32 mtu, __u32 overhead)
{
	packet->mtu = mtu > overhead ? mtu - overhead : 0;
	return drop(DROP_PACKET_TOO_BIG);
}

struct next_hop {
	__u32 ifindex;
	/* 802.1Q tag, or 0. */
	__u16 vlan;
	/* The kernel resolves the addresses. */
	__u16 by_kernel;
	__u8 destination[ETH_ALEN];
	__u8 source[ETH_ALEN];
};

/* Returns 0 or the verdict. */
static __always_inline int next_hop_prepared(struct xdp_md *ctx, struct packet *packet,
					     const struct node *node, __u32 overhead,
					     struct next_hop *hop)
{
	if (packet->length + overhead > node->mtu)
		return too_big(packet, node->mtu, overhead);
	hop->ifindex = node->ifindex;
	hop->vlan = node->vlan;
	__builtin_memcpy(hop->destination, node->destination, ETH_ALEN);
	__builtin_memcpy(hop->source, node->source, ETH_ALEN);
	return 0;
}

/* Returns 0 or the verdict. */
static __always_inline int next_hop_routed(struct xdp_md *ctx, struct packet *packet,
					   const struct self *self, const struct node *node,
					   const int overhead, struct next_hop *hop)
{
	struct bpf_fib_lookup fib = {
		.l4_protocol = IPPROTO_UDP,
		.sport = tunnel_source_port(packet->node_hash),
		.dport = bpf_htons(GENEVE_PORT),
		.tot_len = packet->length + overhead + path_extra(packet->path),
		.ifindex = ctx->ingress_ifindex,
	};

	if (overhead == OVERHEAD_IPV4) {
		fib.family = ADDRESS_FAMILY_IPV4;
		fib.tos = packet->tos & ~3;
		fib.ipv4_src = self->ipv4;
		fib.ipv4_dst = node->ipv4;
	} else {
		fib.family = ADDRESS_FAMILY_IPV6;
		__builtin_memcpy(fib.ipv6_src, &self->ipv6, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &node->ipv6, sizeof(fib.ipv6_dst));
	}
	switch (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		hop->by_kernel = !accepts_frame(ctx, self, fib.ifindex);
		break;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		hop->by_kernel = 1;
		break;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return too_big(packet, fib.mtu_result, overhead + path_extra(packet->path));
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return drop(DROP_FORWARDING_DISABLED);
	default:
		return drop(DROP_NODE_ROUTE);
	}
	hop->ifindex = fib.ifindex;
	__builtin_memcpy(hop->destination, fib.dmac, ETH_ALEN);
	__builtin_memcpy(hop->source, fib.smac, ETH_ALEN);
	return 0;
}

static __always_inline int push_tag(struct xdp_md *ctx, __u16 tag)
{
	struct ethhdr *eth;
	struct vlan {
		__be16 tag;
		__be16 protocol;
	} *vlan;
	__be16 protocol;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*vlan)))
		return -1;
	eth = (void *)(long)ctx->data;
	vlan = (void *)(eth + 1);
	if ((void *)(vlan + 1) > (void *)(long)ctx->data_end)
		return -1;
	/* The EtherType stays in place and becomes the tag's protocol. */
	protocol = vlan->protocol;
	__builtin_memmove(eth, (void *)eth + sizeof(*vlan), 2 * ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_8021Q);
	vlan->tag = bpf_htons(tag);
	vlan->protocol = protocol;
	return 0;
}

static __always_inline int transmit(struct xdp_md *ctx, const struct next_hop *hop)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if (hop->by_kernel)
		return pass_to_kernel(ctx, hop->ifindex);
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return drop(DROP_HEADROOM);
	trace_interface(hop->ifindex);
	__builtin_memcpy(eth->h_dest, hop->destination, ETH_ALEN);
	__builtin_memcpy(eth->h_source, hop->source, ETH_ALEN);
	if (hop->vlan && push_tag(ctx, hop->vlan))
		return drop(DROP_HEADROOM);
	if (leaves_by(ctx, hop->ifindex))
		return XDP_TX;
	return bpf_redirect(hop->ifindex, 0);
}
