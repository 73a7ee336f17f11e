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
#include "csum.h"
#include "geneve.h"
#include "settings.h"

/* The outer source port carries the flow's entropy for RSS and ECMP on the way: the
 * dynamic range (RFC 6335 section 6), as RFC 8926 section 3.3 asks.
 */
static __always_inline __be16 tunnel_source_port(const struct packet *packet)
{
	return bpf_htons(49152 + (packet->node_hash & 0x3fff));
}

static __always_inline void write_tunnel(struct tunnel *tunnel, const struct packet *packet)
{
	tunnel->udp.source = tunnel_source_port(packet);
	tunnel->udp.dest = bpf_htons(GENEVE_PORT);
	tunnel->udp.len = bpf_htons(packet->length + sizeof(*tunnel));
	/* RFC 6935 and RFC 6936 permit this for tunnels over IPv6: what is inside
	 * has a checksum of its own.
	 */
	tunnel->udp.check = 0;
	tunnel->geneve.version_length = GENEVE_OPTION_WORDS;
	tunnel->geneve.flags = GENEVE_FLAG_CRITICAL;
	tunnel->geneve.protocol = packet->flow.family == ADDRESS_FAMILY_IPV4 ?
					  bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	tunnel->geneve.vni = bpf_htonl(GENEVE_VNI << 8);
	tunnel->option.class = bpf_htons(GENEVE_OPTION_CLASS);
	tunnel->option.type = GENEVE_OPTION_TYPE;
	tunnel->option.length = GENEVE_OPTION_WORDS - 1;
	tunnel->option.asking = bpf_htons(packet->asking);
	tunnel->option.chain[0] = bpf_htons(packet->chain[0]);
	tunnel->option.chain[1] = bpf_htons(packet->chain[1]);
	tunnel->option.chain[2] = bpf_htons(packet->chain[2]);
}

/* RFC 6040 section 4.1: the outer header carries the inner ECN field. A constant
 * identification suits atomic datagrams (RFC 6864 section 4.1).
 */
static __always_inline void write_outer_ipv4(struct iphdr *ip, const struct packet *packet,
					     __be32 from, __be32 to)
{
	__u32 *word = (__u32 *)ip;

	ip->version = 4;
	ip->ihl = 5;
	ip->tos = packet->tos;
	ip->tot_len = bpf_htons(packet->length + OVERHEAD_IPV4);
	ip->id = 0;
	ip->frag_off = bpf_htons(IPV4_DONT_FRAGMENT);
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	ip->check = 0;
	ip->saddr = from;
	ip->daddr = to;
	ip->check = csum_fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
}

static __always_inline void write_outer_ipv6(struct ipv6hdr *ip, const struct packet *packet,
					     const struct address *from, const struct address *to)
{
	/* RFC 6438: the flow label spreads like the source port. */
	*(__be32 *)ip = bpf_htonl(6u << 28 | packet->tos << 20 | (packet->node_hash & 0xfffff));
	ip->payload_len = bpf_htons(packet->length + sizeof(struct tunnel));
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, from, sizeof(*from));
	__builtin_memcpy(&ip->daddr, to, sizeof(*to));
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

static __always_inline int transmit(struct xdp_md *ctx, const struct self *self,
				    const struct bpf_fib_lookup *hop)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if (!takes_frame(ctx, self, hop->ifindex))
		return hand_to_kernel(ctx, hop->ifindex);
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return drop(DROP_HEADROOM);
	trace_interface(hop->ifindex);
	__builtin_memcpy(eth->h_dest, hop->dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, hop->smac, ETH_ALEN);
	if (hop->ifindex == ctx->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect(hop->ifindex, 0);
}

/* Sends an encapsulated packet to its outer destination. */
static __always_inline int route(struct xdp_md *ctx, const struct self *self,
				 struct bpf_fib_lookup *hop)
{
	hop->l4_protocol = IPPROTO_UDP;
	hop->dport = bpf_htons(GENEVE_PORT);
	hop->ifindex = ctx->ingress_ifindex;
	switch (bpf_fib_lookup(ctx, hop, sizeof(*hop), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return transmit(ctx, self, hop);
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return hand_to_kernel(ctx, hop->ifindex);
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return drop(DROP_ENCAP_TOO_BIG);
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return drop(DROP_FORWARDING_OFF);
	default:
		return drop(DROP_NODE_ROUTE);
	}
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

static __always_inline int encap_ipv4(struct xdp_md *ctx, const struct packet *packet,
				      const struct self *self, const struct node *node)
{
	struct bpf_fib_lookup hop = {
		.family = ADDRESS_FAMILY_IPV4,
		.sport = tunnel_source_port(packet),
		.tot_len = packet->length + OVERHEAD_IPV4,
		.tos = packet->tos & ~3,
		.ipv4_src = self->ipv4,
		.ipv4_dst = node->ipv4,
	};
	struct iphdr *ip = make_room(ctx, packet, OVERHEAD_IPV4, bpf_htons(ETH_P_IP));

	if (!ip)
		return drop(DROP_HEADROOM);
	write_outer_ipv4(ip, packet, hop.ipv4_src, hop.ipv4_dst);
	write_tunnel((void *)(ip + 1), packet);
	return route(ctx, self, &hop);
}

static __always_inline int encap_ipv6(struct xdp_md *ctx, const struct packet *packet,
				      const struct self *self, const struct node *node)
{
	struct bpf_fib_lookup hop = {
		.family = ADDRESS_FAMILY_IPV6,
		.sport = tunnel_source_port(packet),
		.tot_len = packet->length + OVERHEAD_IPV6,
	};
	struct ipv6hdr *ip;

	__builtin_memcpy(hop.ipv6_src, &self->ipv6, sizeof(hop.ipv6_src));
	__builtin_memcpy(hop.ipv6_dst, &node->ipv6, sizeof(hop.ipv6_dst));
	ip = make_room(ctx, packet, OVERHEAD_IPV6, bpf_htons(ETH_P_IPV6));
	if (!ip)
		return drop(DROP_HEADROOM);
	write_outer_ipv6(ip, packet, &self->ipv6, &node->ipv6);
	write_tunnel((void *)(ip + 1), packet);
	return route(ctx, self, &hop);
}

/* Sends the packet to the node, whatever it was encapsulated in before. */
__noinline int encapsulate(struct xdp_md *ctx, const struct packet *packet,
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
		return encap_ipv4(ctx, packet, self, node);
	if (!node->ipv4 && address_is_zero(&node->ipv6))
		return drop(DROP_NODE_UNKNOWN);
	if (address_is_zero(&self->ipv6) || address_is_zero(&node->ipv6))
		return drop(DROP_NODE_FAMILY);
	return encap_ipv6(ctx, packet, self, node);
}
