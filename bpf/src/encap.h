/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "count.h"
#include "dropped.h"
#include "geneve.h"
#include "outer.h"
#include "settings.h"

/* Whether the next hop to the node is prepared, and the agent watches over it. */
static __always_inline int hop_is_prepared(const struct node *node)
{
	__u32 zero = 0;
	__u64 *beat = bpf_map_lookup_elem(&heartbeat, &zero);

	if (!node->ifindex || !beat)
		return 0;
	return bpf_jiffies64() - *beat < HOP_SECONDS * ticks_per_second;
}

/* Leaves the next hop to the kernel: the frame goes up with a note in front of it, on
 * which the tcx ingress program sends it on. The stack itself would drop it, for it
 * comes in from outside with an address of ours as its source.
 */
static __always_inline int hand_to_kernel(struct xdp_md *ctx, __u32 ifindex)
{
	struct handover *note;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*note)))
		return drop(DROP_HANDOVER);
	note = (void *)(long)ctx->data_meta;
	if ((void *)(note + 1) > (void *)(long)ctx->data)
		return drop(DROP_HANDOVER);
	note->magic = HANDOVER_MAGIC;
	note->ifindex = ifindex;
	trace_step(TRACE_TO_KERNEL);
	trace_interface(ifindex);
	count_event(EVENT_HANDED_TO_KERNEL);
	return XDP_PASS;
}

/* Whether a frame sent back where it came in (XDP_TX) leaves by the interface. That is so of
 * a bond for frames from its members, too: the kernel then picks the member to send by.
 */
static __always_inline int leaves_by(const struct xdp_md *ctx, __u32 ifindex)
{
	__u32 ingress = ctx->ingress_ifindex;
	struct uplink *member;

	if (ifindex == ingress)
		return 1;
	member = bpf_map_lookup_elem(&uplinks, &ingress);
	return member && member->master == ifindex;
}

/* Whether the driver of the interface takes the frame from here. */
static __always_inline int takes_frame(const struct xdp_md *ctx, const struct self *self,
				       __u32 ifindex)
{
	struct uplink *uplink;

	if (ifindex == ctx->ingress_ifindex)
		return !(self->flags & SELF_NO_TRANSMIT);
	uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	return uplink && uplink->flags & UPLINK_TAKES_FRAMES;
}

/* The packet, which is not encapsulated yet, would be longer with it than mtu, the longest
 * IP packet that the way to the node takes. The client is told what is left for it.
 */
static __always_inline int too_big(struct packet *packet, __u32 mtu, __u32 overhead)
{
	packet->mtu = mtu > overhead ? mtu - overhead : 0;
	return drop(DROP_ENCAP_TOO_BIG);
}

/* How a frame leaves. */
struct exit {
	__u32 ifindex;
	/* The 802.1Q tag, or zero. */
	__u16 vlan;
	/* The kernel finds the next hop, the addresses are not set. */
	__u16 by_kernel;
	/* As they stand in a frame. */
	__u8 destination[ETH_ALEN];
	__u8 source[ETH_ALEN];
};

/* Takes the next hop that the agent prepared; returns zero or the verdict. */
static __always_inline int exit_prepared(struct xdp_md *ctx, struct packet *packet,
					 const struct node *node, const int overhead,
					 struct exit *exit)
{
	if (packet->length + overhead > node->mtu)
		return too_big(packet, node->mtu, overhead);
	exit->ifindex = node->ifindex;
	exit->vlan = node->vlan;
	__builtin_memcpy(exit->destination, node->destination, ETH_ALEN);
	__builtin_memcpy(exit->source, node->source, ETH_ALEN);
	return 0;
}

/* Asks the kernel for the next hop; returns zero or the verdict. */
static __always_inline int exit_routed(struct xdp_md *ctx, struct packet *packet,
				       const struct self *self, const struct node *node,
				       const int overhead, struct exit *exit)
{
	struct bpf_fib_lookup hop = {
		.l4_protocol = IPPROTO_UDP,
		.sport = tunnel_source_port(packet->node_hash),
		.dport = bpf_htons(GENEVE_PORT),
		.tot_len = packet->length + overhead,
		.ifindex = ctx->ingress_ifindex,
	};

	if (overhead == OVERHEAD_IPV4) {
		hop.family = ADDRESS_FAMILY_IPV4;
		hop.tos = packet->tos & ~3;
		hop.ipv4_src = self->ipv4;
		hop.ipv4_dst = node->ipv4;
	} else {
		hop.family = ADDRESS_FAMILY_IPV6;
		__builtin_memcpy(hop.ipv6_src, &self->ipv6, sizeof(hop.ipv6_src));
		__builtin_memcpy(hop.ipv6_dst, &node->ipv6, sizeof(hop.ipv6_dst));
	}
	switch (bpf_fib_lookup(ctx, &hop, sizeof(hop), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		exit->by_kernel = !takes_frame(ctx, self, hop.ifindex);
		break;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		exit->by_kernel = 1;
		break;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return too_big(packet, hop.mtu_result, overhead);
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return drop(DROP_FORWARDING_OFF);
	default:
		return drop(DROP_NODE_ROUTE);
	}
	exit->ifindex = hop.ifindex;
	__builtin_memcpy(exit->destination, hop.dmac, ETH_ALEN);
	__builtin_memcpy(exit->source, hop.smac, ETH_ALEN);
	return 0;
}

/* Moves the Ethernet addresses and puts an 802.1Q tag behind them. */
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
	/* What followed the addresses stays where it is and is the tag's protocol. */
	protocol = vlan->protocol;
	__builtin_memmove(eth, (void *)eth + sizeof(*vlan), 2 * ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_8021Q);
	vlan->tag = bpf_htons(tag);
	vlan->protocol = protocol;
	return 0;
}

static __always_inline int transmit(struct xdp_md *ctx, const struct exit *exit)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if (exit->by_kernel)
		return hand_to_kernel(ctx, exit->ifindex);
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return drop(DROP_HEADROOM);
	trace_interface(exit->ifindex);
	__builtin_memcpy(eth->h_dest, exit->destination, ETH_ALEN);
	__builtin_memcpy(eth->h_source, exit->source, ETH_ALEN);
	if (exit->vlan && push_tag(ctx, exit->vlan))
		return drop(DROP_HEADROOM);
	if (leaves_by(ctx, exit->ifindex))
		return XDP_TX;
	return bpf_redirect(exit->ifindex, 0);
}

/* Makes room so that the frame is an Ethernet header, overhead bytes and the inner IP
 * packet; returns what follows the Ethernet header, or NULL. The Ethernet addresses
 * stay those of the frame that came in.
 */
static __always_inline void *make_room(struct xdp_md *ctx, const struct packet *packet,
				       const int overhead, __be16 protocol)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ethhdr old;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return NULL;
	old = *eth;
	old.h_proto = protocol;
	if (bpf_xdp_adjust_head(ctx, (int)packet->l3 - (int)sizeof(old) - overhead))
		return NULL;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) + overhead > (void *)(long)ctx->data_end)
		return NULL;
	*eth = old;
	return eth + 1;
}

static __always_inline int send_encapsulated(struct xdp_md *ctx, struct packet *packet,
					     const struct self *self, const struct node *node,
					     const int overhead)
{
	struct outer outer = outer_of(packet);
	struct exit exit = {};
	int verdict;

	if (hop_is_prepared(node) && takes_frame(ctx, self, node->ifindex))
		verdict = exit_prepared(ctx, packet, node, overhead, &exit);
	else
		verdict = exit_routed(ctx, packet, self, node, overhead, &exit);
	if (verdict)
		return verdict;
	if (overhead == OVERHEAD_IPV4) {
		struct iphdr *ip = make_room(ctx, packet, overhead, bpf_htons(ETH_P_IP));

		if (!ip)
			return drop(DROP_HEADROOM);
		write_outer_ipv4(ip, &outer, self->ipv4, node->ipv4);
		write_tunnel((void *)(ip + 1), &outer);
	} else {
		struct ipv6hdr *ip = make_room(ctx, packet, overhead, bpf_htons(ETH_P_IPV6));

		if (!ip)
			return drop(DROP_HEADROOM);
		write_outer_ipv6(ip, &outer, &self->ipv6, &node->ipv6);
		write_tunnel((void *)(ip + 1), &outer);
	}
	return transmit(ctx, &exit);
}

/* Sends the packet to the node, whatever it was encapsulated in before. */
__noinline int encapsulate(struct xdp_md *ctx, struct packet *packet,
			   const struct self *self, __u32 id)
{
	struct node *node;

	if (!packet || !self)
		return XDP_ABORTED;
	trace_node(id);
	node = bpf_map_lookup_elem(&nodes, &id);
	if (!node)
		return drop(DROP_NODE_UNKNOWN);
	if (packet->length > 0xffff - OVERHEAD_IPV6)
		return drop(DROP_ENCAP_TOO_BIG);
	if (self->ipv4 && node->ipv4)
		return send_encapsulated(ctx, packet, self, node, OVERHEAD_IPV4);
	if (!node->ipv4 && address_is_zero(&node->ipv6))
		return drop(DROP_NODE_UNKNOWN);
	if (address_is_zero(&self->ipv6) || address_is_zero(&node->ipv6))
		return drop(DROP_NODE_FAMILY);
	return send_encapsulated(ctx, packet, self, node, OVERHEAD_IPV6);
}
