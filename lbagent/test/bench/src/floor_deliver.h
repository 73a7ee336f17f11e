/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "floor_parse.h"

/* An endpoint of a connection, or the VIP that its replies have. */
struct station4 {
	__be32 address;
	__be16 port;
	__u16 pad;
};

struct station6 {
	__be32 address[4];
	__be16 port;
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow4);
	__type(value, struct station4);
} connections4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow6);
	__type(value, struct station6);
} connections6 SEC(".maps");

/* Of replies: the client, the endpoint, their ports in the order of the reply. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow4);
	__type(value, struct station4);
} replies4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow6);
	__type(value, struct station6);
} replies6 SEC(".maps");

/* Where all connections go, and the VIP of all replies. */
static const struct station4 pod4 = { .address = 0x020112c6, .port = 0x901f };
static const struct station6 pod6 = {
	.address = { 0xb80d0120, 0x01000001, 0, 0x02000000 },
	.port = 0x901f,
};
static const struct station4 vip4 = { .address = 0x0a7100cb, .port = 0x5100 };
static const struct station6 vip6 = {
	.address = { 0xb80d0120, 0x0000feca, 0, 0x10000000 },
	.port = 0x5100,
};

/* What a flow is served by. New ones are served by first. */
static __always_inline const struct station4 *station4(void *map, const struct flow4 *flow,
						       const struct station4 *first)
{
	const struct station4 *known = bpf_map_lookup_elem(map, flow);

	if (known)
		return known;
	return bpf_map_update_elem(map, flow, first, BPF_ANY) ? NULL : first;
}

static __always_inline const struct station6 *station6(void *map, const struct flow6 *flow,
						       const struct station6 *first)
{
	const struct station6 *known = bpf_map_lookup_elem(map, flow);

	if (known)
		return known;
	return bpf_map_update_elem(map, flow, first, BPF_ANY) ? NULL : first;
}

/* A checksum (RFC 1624) after the sum of its words changed by the difference. */
static __always_inline __u16 changed_check(__u16 check, __u64 difference)
{
	__u64 sum = (__u16)~check + difference;

	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

static __always_inline __u64 difference4(__be32 from, __be32 to)
{
	return (__u64)(__u32)~from + to;
}

static __always_inline void count(__u32 id, __u32 bytes)
{
	struct counter *counter = bpf_map_lookup_elem(&counters, &id);

	if (counter) {
		counter->packets++;
		counter->bytes += bytes;
	}
}

/* The checksum behind the ports; NULL where the frame ends before it. A UDP checksum of zero
 * stays (RFC 768).
 */
static __always_inline __u16 *l4_check(const struct ports *ports, __u8 protocol,
				       const void *data_end)
{
	const struct tcphdr *tcp = (const void *)ports;
	const struct udphdr *udp = (const void *)ports;

	if (protocol == IPPROTO_TCP)
		return (const void *)(tcp + 1) > data_end ? NULL : (__u16 *)&tcp->check;
	return udp->check ? (__u16 *)&udp->check : NULL;
}

/* Writes address and port of to over those given, of a packet with this IP header. */
static __always_inline void rewrite4(struct iphdr *ip, __be32 *address, __be16 *port,
				     __u16 *check, const struct station4 *to)
{
	__u64 difference = difference4(*address, to->address);

	ip->check = changed_check(ip->check, difference);
	if (check)
		*check = changed_check(*check, difference + (__u16)~*port + to->port);
	*address = to->address;
	*port = to->port;
}

static __always_inline void rewrite6(__be32 *address, __be16 *port, __u16 *check,
				     const struct station6 *to)
{
	__u64 difference = difference4(address[0], to->address[0]) +
			   difference4(address[1], to->address[1]) +
			   difference4(address[2], to->address[2]) +
			   difference4(address[3], to->address[3]);

	if (check)
		*check = changed_check(*check, difference + (__u16)~*port + to->port);
	__builtin_memcpy(address, to->address, sizeof(to->address));
	*port = to->port;
}

static __always_inline int deliver4(struct xdp_md *ctx)
{
	const struct station4 *to;
	struct frontend *frontend;
	struct ports *ports;
	struct iphdr *ip;

	if (parse4(ctx, &ip, &ports))
		return XDP_PASS;
	frontend = lookup4(ip, ports);
	if (!frontend)
		return XDP_PASS;
	struct flow4 flow = { ip->saddr, ip->daddr, *(__be32 *)ports, ip->protocol };

	to = station4(&connections4, &flow, &pod4);
	if (!to)
		return XDP_DROP;
	count(frontend->id, bpf_ntohs(ip->tot_len));
	rewrite4(ip, &ip->daddr, &ports->destination,
		 l4_check(ports, ip->protocol, (void *)(long)ctx->data_end), to);
	return XDP_PASS;
}

static __always_inline int deliver6(struct xdp_md *ctx)
{
	const struct station6 *to;
	struct frontend *frontend;
	struct ports *ports;
	struct ipv6hdr *ip;

	if (parse6(ctx, &ip, &ports))
		return XDP_PASS;
	frontend = lookup6(ip, ports, vip_sum(ip->daddr.in6_u.u6_addr32));
	if (!frontend)
		return XDP_PASS;
	struct flow6 flow = { .ports = *(__be32 *)ports, .protocol = ip->nexthdr };

	__builtin_memcpy(flow.client, &ip->saddr, sizeof(flow.client));
	__builtin_memcpy(flow.vip, &ip->daddr, sizeof(flow.vip));
	to = station6(&connections6, &flow, &pod6);
	if (!to)
		return XDP_DROP;
	count(frontend->id, bpf_ntohs(ip->payload_len) + sizeof(*ip));
	rewrite6((void *)&ip->daddr, &ports->destination,
		 l4_check(ports, ip->nexthdr, (void *)(long)ctx->data_end), to);
	return XDP_PASS;
}

/* Reports whether the UDP header is that of an encapsulated packet with the inner protocol. */
static __always_inline int is_tunnel(const struct ports *ports, const void *data_end,
				     __be16 protocol)
{
	const __u32 *geneve = (const void *)ports + sizeof(struct udphdr);

	if ((const void *)(geneve + 2) > data_end)
		return 0;
	return ports->destination == bpf_htons(6081) &&
	       geneve[0] == bpf_htonl(0x06400000 | bpf_ntohs(protocol)) &&
	       geneve[1] == bpf_htonl(0x4d4c5200);
}

/* Takes overhead bytes away behind the Ethernet header. */
static __always_inline int strip(struct xdp_md *ctx, int overhead)
{
	struct ethhdr *eth = (void *)(long)ctx->data, old;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	old = *eth;
	if (bpf_xdp_adjust_head(ctx, overhead))
		return -1;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	*eth = old;
	return 0;
}

static __always_inline int reply4(struct __sk_buff *skb, struct iphdr *ip)
{
	struct ports *ports = (void *)(ip + 1);
	const struct station4 *vip;

	if ((void *)ports + sizeof(struct udphdr) > (void *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	if (*(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(0x3fff) ||
	    (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP))
		return TC_ACT_UNSPEC;
	struct flow4 flow = { ip->daddr, ip->saddr, *(__be32 *)ports, ip->protocol };

	vip = station4(&replies4, &flow, &vip4);
	if (vip)
		rewrite4(ip, &ip->saddr, &ports->source,
			 l4_check(ports, ip->protocol, (void *)(long)skb->data_end), vip);
	return TC_ACT_UNSPEC;
}

static __always_inline int reply6(struct __sk_buff *skb, struct ipv6hdr *ip)
{
	struct ports *ports = (void *)(ip + 1);
	const struct station6 *vip;

	if ((void *)ports + sizeof(struct udphdr) > (void *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	if (ip->version != 6 || (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP))
		return TC_ACT_UNSPEC;
	struct flow6 flow = { .ports = *(__be32 *)ports, .protocol = ip->nexthdr };

	__builtin_memcpy(flow.client, &ip->daddr, sizeof(flow.client));
	__builtin_memcpy(flow.vip, &ip->saddr, sizeof(flow.vip));
	vip = station6(&replies6, &flow, &vip6);
	if (vip)
		rewrite6((void *)&ip->saddr, &ports->source,
			 l4_check(ports, ip->nexthdr, (void *)(long)skb->data_end), vip);
	return TC_ACT_UNSPEC;
}
