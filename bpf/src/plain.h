/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "count.h"
#include "dropped.h"
#include "encap.h"
#include "filter.h"
#include "stage1.h"

/* The straight way of nearly all packets: TCP or UDP right behind an IP header without
 * options, to another node, by a row at rest and a next hop that is prepared. It keeps what
 * it reads in registers and gives up, before it has changed or counted anything, on
 * whatever is not plain.
 */

#define NOT_PLAIN -1

#define PLAIN_IPV4_FIRST_BYTE 0x45

/* The source and destination port as the machine loads them both. */
static __always_inline int to_geneve(__u8 protocol, __u32 ports)
{
	return protocol == IPPROTO_UDP && ports >> 16 == bpf_htons(GENEVE_PORT);
}

/* Whether a transport header of TCP or UDP is whole in the frame and in the length of what
 * follows the IP header. That eight bytes are in the frame is known.
 */
static __always_inline int l4_is_whole(const void *l4, const void *data_end, __u8 protocol,
				       __u32 length)
{
	__u32 header = sizeof(struct tcphdr);

	if (protocol != IPPROTO_TCP) {
		if (protocol != IPPROTO_UDP)
			return 0;
		header = sizeof(struct udphdr);
	}
	return length >= header && l4 + header <= data_end;
}

/* No frontend has the destination and port. Most such packets are for other hosts of a
 * network that VIPs are in, this node above all; not here a VIP's or a pool's.
 */
static __noinline int plain_neighbour_ipv4(const struct self *self, __be32 destination)
{
	struct address address;

	if (destination == self->ipv4)
		return XDP_PASS;
	address_set_ipv4(&address, destination);
	return is_vip(&address) || pools_have_ipv4(destination) ? NOT_PLAIN : XDP_PASS;
}

static __noinline int plain_neighbour_ipv6(const struct self *self,
					   const struct address *destination)
{
	if (address_equal(destination, &self->ipv6))
		return XDP_PASS;
	return is_vip(destination) || pools_have_ipv6(destination) ? NOT_PLAIN : XDP_PASS;
}

/* The bytes of encapsulation towards a node; zero if there is no family in common. */
static __always_inline __u32 plain_overhead(const struct self *self, const struct node *node)
{
	if (self->ipv4 && node->ipv4)
		return OVERHEAD_IPV4;
	/* No address of a node begins with four bytes of zero. */
	return self->ipv6.word[0] && node->ipv6.word[0] ? OVERHEAD_IPV6 : 0;
}

/* Whether the next hop to the node is plain. */
static __always_inline int hop_is_plain(struct xdp_md *ctx, const struct self *self,
					const struct node *node)
{
	return !node->vlan && !(self->flags & SELF_NO_TRANSMIT) && hop_is_prepared(node) &&
	       leaves_by(ctx, node->ifindex);
}

/* An Ethernet header and so many bytes in front of the packet; returns the latter. */
static __always_inline void *plain_room(struct xdp_md *ctx, const struct node *node,
					const int overhead, __be16 protocol)
{
	struct stations *stations = (void *)(long)ctx->data;

	if ((void *)stations + sizeof(struct ethhdr) + overhead > (void *)(long)ctx->data_end)
		return NULL;
	*stations = *(const struct stations *)node->destination;
	*(__be16 *)(stations + 1) = protocol;
	return (void *)stations + sizeof(struct ethhdr);
}

static __always_inline int plain_send(struct xdp_md *ctx, const struct self *self,
				      const struct node *node, const struct frontend *frontend,
				      const struct outer *outer)
{
	const __u32 overhead = plain_overhead(self, node);

	if (!overhead || outer->length + overhead > node->mtu)
		return NOT_PLAIN;
	count_attached(frontend->id, outer->length);
	if (overhead == OVERHEAD_IPV4) {
		struct iphdr *ip;

		if (bpf_xdp_adjust_head(ctx, -OVERHEAD_IPV4))
			return dropped_unread(ctx, frontend->id, DROP_HEADROOM);
		ip = plain_room(ctx, node, OVERHEAD_IPV4, bpf_htons(ETH_P_IP));
		if (!ip)
			return dropped_unread(ctx, frontend->id, DROP_HEADROOM);
		write_outer_ipv4(ip, outer, self->ipv4, node->ipv4);
		write_tunnel((void *)(ip + 1), outer);
	} else {
		struct ipv6hdr *ip;

		if (bpf_xdp_adjust_head(ctx, -OVERHEAD_IPV6))
			return dropped_unread(ctx, frontend->id, DROP_HEADROOM);
		ip = plain_room(ctx, node, OVERHEAD_IPV6, bpf_htons(ETH_P_IPV6));
		if (!ip)
			return dropped_unread(ctx, frontend->id, DROP_HEADROOM);
		write_outer_ipv6(ip, outer, &self->ipv6, &node->ipv6);
		write_tunnel((void *)(ip + 1), outer);
	}
	return XDP_TX;
}

/* A whole packet to the frontend. */
static __always_inline int plain_forward(struct xdp_md *ctx, const struct self *self,
					 struct frontend *frontend, struct outer *outer)
{
	struct node *node;
	struct row *row;
	__u32 index, id;

	/* None of the rules that some frontends have. */
	if (frontend->flags | frontend->ranges | frontend->affinity)
		return NOT_PLAIN;
	index = row_index(frontend, outer->hash);
	row = bpf_map_lookup_elem(&rows, &index);
	if (!row || row->way & ROW_MARKED)
		return NOT_PLAIN;
	outer->way = way_by_row(row->way, self);
	id = way_node(outer->way, WAY_CHOOSER);
	node = bpf_map_lookup_elem(&nodes, &id);
	if (!node || !hop_is_plain(ctx, self, node))
		return NOT_PLAIN;
	return plain_send(ctx, self, node, frontend, outer);
}

static __always_inline int plain_ipv4(struct xdp_md *ctx, struct frontend **found)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__u64 key;
	struct frontend *frontend;
	struct self *self;
	struct outer outer = { .protocol = bpf_htons(ETH_P_IP) };
	struct hash_pair hash;
	__u32 ports;

	if ((void *)(ip + 1) + sizeof(struct udphdr) > data_end)
		return NOT_PLAIN;
	ports = *(__u32 *)(ip + 1);
	if (ip->protocol == IPPROTO_UDP &&
	    (*(__u8 *)ip != PLAIN_IPV4_FIRST_BYTE || to_geneve(ip->protocol, ports)))
		return NOT_PLAIN;
	if (!filter_has_ipv4(ip->daddr))
		return XDP_PASS;
	outer.length = bpf_ntohs(ip->tot_len);
	if (*(__u8 *)ip != PLAIN_IPV4_FIRST_BYTE ||
	    ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET) ||
	    !l4_is_whole(ip + 1, data_end, ip->protocol, outer.length - sizeof(*ip)) ||
	    outer.length < sizeof(*ip) || outer.length > data_end - (void *)ip)
		return NOT_PLAIN;
	self = settings_get();
	if (!self || !station_is_ours(data, self))
		return XDP_PASS;
	/* A struct frontend_key4, written at once: the lookup would wait for parts of a word. */
	key = (__u64)(ports >> 16 | (__u32)ip->protocol << 16) << 32 | ip->daddr;
	frontend = bpf_map_lookup_elem(&frontends4, &key);
	if (!frontend)
		return plain_neighbour_ipv4(self, ip->daddr);
	*found = frontend;
	outer.tos = ip->tos;
	hash = hash_ipv4(ip->saddr, ip->daddr, ports, ip->protocol);
	outer.hash = hash.node;
	return plain_forward(ctx, self, frontend, &outer);
}

static __always_inline int plain_ipv6(struct xdp_md *ctx, struct frontend **found)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);
	struct frontend *frontend;
	struct self *self;
	struct outer outer = { .protocol = bpf_htons(ETH_P_IPV6) };
	struct hash_pair hash;
	struct address vip;
	__u64 hashed;
	__u32 ports;

	if ((void *)(ip + 1) + sizeof(struct udphdr) > data_end)
		return NOT_PLAIN;
	ports = *(__u32 *)(ip + 1);
	if (to_geneve(ip->nexthdr, ports))
		return NOT_PLAIN;
	if (!filter_has_ipv6(&ip->daddr))
		return XDP_PASS;
	outer.length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (ip->version != 6 ||
	    !l4_is_whole(ip + 1, data_end, ip->nexthdr, outer.length - sizeof(*ip)) ||
	    outer.length > data_end - (void *)ip)
		return NOT_PLAIN;
	self = settings_get();
	if (!self || !station_is_ours(data, self))
		return XDP_PASS;
	hashed = hash_vip((void *)&ip->daddr);
	frontend = frontend6_find(&ip->daddr, hashed, frontend_port(ports >> 16, ip->nexthdr));
	if (!frontend) {
		__builtin_memcpy(&vip, &ip->daddr, sizeof(vip));
		return plain_neighbour_ipv6(self, &vip);
	}
	*found = frontend;
	outer.tos = bpf_ntohs(*(__be16 *)ip) >> 4;
	hash = hash_ipv6((void *)&ip->saddr, hashed, ports, ip->nexthdr);
	outer.hash = hash.node;
	return plain_forward(ctx, self, frontend, &outer);
}

/* The verdict, or NOT_PLAIN and the frontend as far as it got. A part of its caller: with
 * return thunks in the kernel a call costs as much as a lookup.
 */
static __always_inline int plain(struct xdp_md *ctx, struct frontend **found)
{
	void *eth = (void *)(long)ctx->data;
	__be16 protocol;

	if (eth + sizeof(struct ethhdr) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	/* In one load. */
	protocol = *(__be16 *)(eth + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_IP))
		return plain_ipv4(ctx, found);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return plain_ipv6(ctx, found);
	return NOT_PLAIN;
}
