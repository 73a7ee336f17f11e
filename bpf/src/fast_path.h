/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "bloom.h"
#include "count.h"
#include "drop_sample.h"
#include "override.h"
#include "frame.h"
#include "frontend.h"
#include "martian.h"
#include "next_hop.h"
#include "outer_header.h"
#include "parse.h"
#include "row.h"
#include "service_proxy.h"
#include "source_ranges.h"
#include "tunnel_tag.h"
#include "verdict.h"

/* Fast path for most packets from routers: TCP or UDP directly behind an IP header without options,
 * to another node with a prepared next hop. Its state stays in registers. All other packets take
 * the full path, unmodified and uncounted.
 */

#define IPV4_NO_OPTIONS 0x45

/* A CNI plugin that uses Geneve has another VNI. */
static __always_inline int may_be_from_node(const void *l4, const void *data_end, __u8 protocol,
					    __u32 ports)
{
	const struct geneve *geneve = l4 + sizeof(struct udphdr);

	return protocol == IPPROTO_UDP && ports >> 16 == bpf_htons(GENEVE_PORT) &&
	       (void *)(geneve + 1) <= data_end &&
	       (vni_is_ours(geneve->vni) || vni_is_probe(geneve->vni));
}

/* The frame contains at least eight bytes of the header. length excludes the IP header. */
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

/* Packets to VIPs, pools and aggregates take the full path; those to hosts near them pass. */
static __noinline int no_frontend_ipv4(const struct self *self, __be32 destination)
{
	struct address address;

	if (destination == self->ipv4 || !part_has_ipv4(destination))
		return XDP_PASS;
	address_set_ipv4(&address, destination);
	if (is_vip(&address) || unassigned_ipv4(self, destination))
		return VERDICT_FULL_PATH;
	return XDP_PASS;
}

static __noinline int no_frontend_ipv6(const struct self *self, const struct in6_addr *destination)
{
	struct address address;

	address_set_ipv6(&address, destination);
	if (address_equal(&address, &self->ipv6) || !part_has_ipv6(&address))
		return XDP_PASS;
	if (is_vip(&address) || unassigned_ipv6(self, &address))
		return VERDICT_FULL_PATH;
	return XDP_PASS;
}

/* Returns the encapsulation overhead in bytes, or 0 without a common address family. */
static __always_inline __u32 fast_overhead(const struct self *self, const struct node *node)
{
	if (self->ipv4 && node->ipv4)
		return OVERHEAD_IPV4;
	/* Addresses of nodes do not begin with 32 zero bits. */
	return self->ipv6.word[0] && node->ipv6.word[0] ? OVERHEAD_IPV6 : 0;
}

static __always_inline int hop_is_fast(struct xdp_md *ctx, const struct self *self,
				       const struct node *node)
{
	return !node->vlan && !(self->flags & SELF_NO_TRANSMIT) && hop_is_prepared(node) &&
	       leaves_by(ctx, node->ifindex);
}

static __always_inline void *fast_room(struct xdp_md *ctx, const struct node *node,
				       const int overhead, const int inner, __be16 protocol)
{
	struct stations *stations = (void *)(long)ctx->data;

	if ((void *)stations + sizeof(struct ethhdr) + overhead + inner >
	    (void *)(long)ctx->data_end)
		return NULL;
	*stations = *(const struct stations *)node->destination;
	*(__be16 *)(stations + 1) = protocol;
	return (void *)stations + sizeof(struct ethhdr);
}

/* from and to are the outer addresses in the frame. */
static __always_inline void fast_tunnel(struct tunnel *tunnel, const struct outer *outer,
					const __be32 *from, const __be32 *to,
					const int outer_family, const int extra)
{
	const int is_ipv4 = outer->protocol == bpf_htons(ETH_P_IP);
	const int header = is_ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct tagged it = {
		.from = from,
		.to = to,
		.option = &tunnel->option,
		.high = extra ? outer->path.high : 0,
		.inner = (void *)(tunnel + 1) + extra,
		.transport = (void *)(tunnel + 1) + extra + header,
		.outer_family = outer_family,
		.inner_family = is_ipv4 ? ADDRESS_FAMILY_IPV4 : ADDRESS_FAMILY_IPV6,
	};
	const struct tunnel_key *key;

	write_tunnel(tunnel, outer, extra);
	if (extra)
		((struct geneve_high *)(tunnel + 1))->path = bpf_htonl(outer->path.high);
	if (!outer->key)
		return;
	key = key_get(outer->key);
	if (key)
		tag_write(&tunnel->tag, tag_of(key, &it));
}

/* outer->length is that of the packet. extra is the size of the path's high part. */
static __always_inline int fast_send(struct xdp_md *ctx, const struct self *self,
				     const struct node *node, const struct frontend *frontend,
				     struct outer *outer, const int extra)
{
	const int header = outer->protocol == bpf_htons(ETH_P_IP) ? sizeof(struct iphdr) :
								    sizeof(struct ipv6hdr);
	const int inner = extra + header + sizeof(struct udphdr);
	const __u32 overhead = fast_overhead(self, node);

	if (!overhead || outer->length + overhead + extra > node->mtu)
		return VERDICT_FULL_PATH;
	count_attached(frontend->id, outer->length);
	outer->length += extra;
	if (path_is_straight(outer->path))
		count_event(EVENT_OVERRIDE_USED);
	outer->key = self_key(self);
	if (overhead == OVERHEAD_IPV4) {
		struct iphdr *ip;

		if (bpf_xdp_adjust_head(ctx, -OVERHEAD_IPV4 - extra))
			return drop_unread(ctx, frontend->id, DROP_HEADROOM);
		ip = fast_room(ctx, node, OVERHEAD_IPV4, inner, bpf_htons(ETH_P_IP));
		if (!ip)
			return drop_unread(ctx, frontend->id, DROP_HEADROOM);
		write_outer_ipv4(ip, outer, self->ipv4, node->ipv4);
		fast_tunnel((void *)(ip + 1), outer, &ip->saddr, &ip->daddr, ADDRESS_FAMILY_IPV4,
			    extra);
	} else {
		struct ipv6hdr *ip;

		if (bpf_xdp_adjust_head(ctx, -OVERHEAD_IPV6 - extra))
			return drop_unread(ctx, frontend->id, DROP_HEADROOM);
		ip = fast_room(ctx, node, OVERHEAD_IPV6, inner, bpf_htons(ETH_P_IPV6));
		if (!ip)
			return drop_unread(ctx, frontend->id, DROP_HEADROOM);
		write_outer_ipv6(ip, outer, &self->ipv6, &node->ipv6);
		fast_tunnel((void *)(ip + 1), outer, (void *)&ip->saddr, (void *)&ip->daddr,
			    ADDRESS_FAMILY_IPV6, extra);
	}
	return XDP_TX;
}

/* Fingerprint of a packet that fast_path_ipv4 or fast_path_ipv6 has validated. */
static __always_inline __u64 fast_fingerprint(const struct xdp_md *ctx)
{
	const struct ethhdr *eth = (void *)(long)ctx->data;
	const void *data_end = (void *)(long)ctx->data_end;
	const struct iphdr *ip = (void *)(eth + 1);
	const struct ipv6hdr *ip6 = (void *)(eth + 1);

	if ((void *)(ip + 1) + sizeof(__u32) > data_end)
		return OVERRIDE_FREE;
	if (ip->version == 4)
		return flow_fingerprint4(ip->saddr, ip->daddr, *(__u32 *)(ip + 1), ip->protocol);
	if ((void *)(ip6 + 1) + sizeof(__u32) > data_end)
		return OVERRIDE_FREE;
	return flow_fingerprint6((void *)&ip6->saddr, (void *)&ip6->daddr, *(__u32 *)(ip6 + 1),
				 ip6->nexthdr);
}

/* Shift of the path flags in the result of fast_flagged_path; the node is below. */
#define FAST_TARGET_FLAGS 32

/* As flagged_node; returns node and flags, or 0. Not inlined, to save stack on other rows. */
__noinline __u64 fast_flagged_path(struct xdp_md *ctx, __u64 row, __u32 index)
{
	__u64 flags = 0, fingerprint, about, *found;
	__u32 node = row_primary(row);

	if (row & ROW_MOVED) {
		const struct row_group *group = row_group_of(index);

		if (!group || !stamp_is_recent(group->moved, ROW_MOVED_SECONDS))
			return 0;
		flags = PATH_LOOKUP;
	}
	if (row & ROW_OVERRIDDEN) {
		fingerprint = fast_fingerprint(ctx);
		found = override_find(fingerprint);
		if (!fingerprint)
			return 0;
		if (found) {
			about = *found;
			if (override_node(about) == node || override_expired(about))
				return 0;
			node = override_node(about);
			override_renew(found, about, index);
			flags = PATH_OVERRIDE | PATH_LOOKUP;
		}
	}
	return flags << FAST_TARGET_FLAGS | node;
}

static __always_inline int fast_send_high4(struct xdp_md *ctx, const struct self *self,
					   const struct node *node, const struct frontend *frontend,
					   struct path path, __u32 hash)
{
	const struct iphdr *ip = (void *)(long)ctx->data + sizeof(struct ethhdr);
	struct outer outer = {
		.path = path,
		.hash = hash,
		.protocol = bpf_htons(ETH_P_IP),
	};

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return VERDICT_FULL_PATH;
	outer.length = bpf_ntohs(ip->tot_len);
	outer.tos = ip->tos;
	return fast_send(ctx, self, node, frontend, &outer, OVERHEAD_HIGH);
}

static __always_inline int fast_send_high6(struct xdp_md *ctx, const struct self *self,
					   const struct node *node, const struct frontend *frontend,
					   struct path path, __u32 hash)
{
	const struct ipv6hdr *ip = (void *)(long)ctx->data + sizeof(struct ethhdr);
	struct outer outer = {
		.path = path,
		.hash = hash,
		.protocol = bpf_htons(ETH_P_IPV6),
	};

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return VERDICT_FULL_PATH;
	outer.length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	outer.tos = bpf_ntohs(*(__be16 *)ip) >> 4;
	return fast_send(ctx, self, node, frontend, &outer, OVERHEAD_HIGH);
}

/* Sends a packet whose path has a high part, i.e. in clusters with long node ids. target is the
 * result of fast_flagged_path. Not inlined, and parses the packet again, to keep its cost away from
 * other clusters.
 */
static __noinline int fast_send_high(struct xdp_md *ctx, const struct frontend *frontend,
				     __u64 content, __u64 target, __u32 hash)
{
	const struct ethhdr *eth = (void *)(long)ctx->data;
	struct self *self = settings_get();
	struct node *node;
	struct path path;
	__u32 id = target;

	node = bpf_map_lookup_elem(&nodes, &id);
	if (!self || !node || !hop_is_fast(ctx, self, node) ||
	    (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return VERDICT_FULL_PATH;
	path = path_by_row(content, self);
	path.word |= target >> FAST_TARGET_FLAGS;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return fast_send_high4(ctx, self, node, frontend, path, hash);
	return fast_send_high6(ctx, self, node, frontend, path, hash);
}

static __always_inline int fast_forward(struct xdp_md *ctx, const struct self *self,
					struct frontend *frontend, struct outer *outer)
{
	struct node *node;
	__u64 content, target;
	__u32 id, index;
	struct row *row;

	/* Local, refusal, source ranges, affinity and the service proxy take the full path. */
	if (service_proxy || frontend->flags | frontend->ranges | frontend->affinity)
		return VERDICT_FULL_PATH;
	index = row_index(frontend->table, outer->hash);
	row = bpf_map_lookup_elem(&rows, &index);
	if (!row)
		return VERDICT_FULL_PATH;
	content = row->path;
	target = row_primary(content);
	if (content & ROW_FLAGGED)
		target = fast_flagged_path(ctx, content, index);
	if (path_by_row(content, self).high)
		return fast_send_high(ctx, frontend, content, target, outer->hash);
	id = target;
	outer->path = path_by_row(content, self);
	outer->path.word |= target >> FAST_TARGET_FLAGS;
	node = bpf_map_lookup_elem(&nodes, &id);
	if (!node || !hop_is_fast(ctx, self, node))
		return VERDICT_FULL_PATH;
	return fast_send(ctx, self, node, frontend, outer, 0);
}

static __always_inline int fast_path_ipv4(struct xdp_md *ctx, struct frontend **found)
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
		return VERDICT_FULL_PATH;
	ports = *(__u32 *)(ip + 1);
	if (ip->protocol == IPPROTO_UDP &&
	    (*(__u8 *)ip != IPV4_NO_OPTIONS ||
	     may_be_from_node(ip + 1, data_end, ip->protocol, ports)))
		return VERDICT_FULL_PATH;
	if (!bloom_has_ipv4(ip->daddr))
		return XDP_PASS;
	outer.length = bpf_ntohs(ip->tot_len);
	if (*(__u8 *)ip != IPV4_NO_OPTIONS ||
	    ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET) ||
	    !l4_is_whole(ip + 1, data_end, ip->protocol, outer.length - sizeof(*ip)) ||
	    outer.length < sizeof(*ip) || outer.length > data_end - (void *)ip)
		return VERDICT_FULL_PATH;
	self = settings_get();
	if (!self || !station_is_ours(data, self))
		return XDP_PASS;
	/* A struct frontend_key4 in one word, to avoid failed store forwarding. */
	key = (__u64)(ports >> 16 | (__u32)ip->protocol << 16) << 32 | ip->daddr;
	frontend = bpf_map_lookup_elem(&frontends4, &key);
	if (!frontend)
		return no_frontend_ipv4(self, ip->daddr);
	*found = frontend;
	if (may_be_martian_ipv4(ip->saddr))
		return VERDICT_FULL_PATH;
	outer.tos = ip->tos;
	hash = hash_ipv4(ip->saddr, ip->daddr, ports, ip->protocol);
	outer.hash = hash.node;
	return fast_forward(ctx, self, frontend, &outer);
}

static __always_inline int fast_path_ipv6(struct xdp_md *ctx, struct frontend **found)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);
	struct frontend *frontend;
	struct self *self;
	struct outer outer = { .protocol = bpf_htons(ETH_P_IPV6) };
	struct hash_pair hash;
	__u64 hashed;
	__u32 ports;

	if ((void *)(ip + 1) + sizeof(struct udphdr) > data_end)
		return VERDICT_FULL_PATH;
	ports = *(__u32 *)(ip + 1);
	if (may_be_from_node(ip + 1, data_end, ip->nexthdr, ports))
		return VERDICT_FULL_PATH;
	if (!bloom_has_ipv6(&ip->daddr))
		return XDP_PASS;
	outer.length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (ip->version != 6 ||
	    !l4_is_whole(ip + 1, data_end, ip->nexthdr, outer.length - sizeof(*ip)) ||
	    outer.length > data_end - (void *)ip)
		return VERDICT_FULL_PATH;
	self = settings_get();
	if (!self || !station_is_ours(data, self))
		return XDP_PASS;
	hashed = hash_vip((void *)&ip->daddr);
	frontend = frontend6_find(&ip->daddr, hashed, frontend_port(ports >> 16, ip->nexthdr));
	if (!frontend)
		return no_frontend_ipv6(self, &ip->daddr);
	*found = frontend;
	if (may_be_martian_ipv6((void *)&ip->saddr))
		return VERDICT_FULL_PATH;
	outer.tos = bpf_ntohs(*(__be16 *)ip) >> 4;
	hash = hash_ipv6((void *)&ip->saddr, hashed, ports, ip->nexthdr);
	outer.hash = hash.node;
	return fast_forward(ctx, self, frontend, &outer);
}

/* Inlined: with return thunks a call costs as much as a map lookup. */
static __always_inline int fast_path(struct xdp_md *ctx, struct frontend **found)
{
	void *eth = (void *)(long)ctx->data;
	__be16 protocol;

	if (eth + sizeof(struct ethhdr) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	/* One load; the packed struct ethhdr would be read by bytes. */
	protocol = *(__be16 *)(eth + offsetof(struct ethhdr, h_proto));
	if (protocol == bpf_htons(ETH_P_IP))
		return fast_path_ipv4(ctx, found);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return fast_path_ipv6(ctx, found);
	return VERDICT_FULL_PATH;
}
