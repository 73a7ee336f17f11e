//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */

/* The least that a program of a given kind can do, written as tightly as it goes, to
 * measure the data plane against. They share no code with it, so that a change
 * there moves no floor. Bounds are checked as the kernel demands and headers as
 * correctness does: version, header length, fragments, TCP or UDP.
 */

#include "floor_deliver.h"
#include "floor_encap.h"

char _license[] SEC("license") = "GPL";

SEC("xdp.frags")
int empty(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* Parse, one hash lookup, up to the stack. */
SEC("xdp.frags")
int lookup_pass(struct xdp_md *ctx)
{
	return lookup(ctx) ? XDP_DROP : XDP_PASS;
}

/* Parse, one hash lookup, back where it came from. */
SEC("xdp.frags")
int lookup_tx(struct xdp_md *ctx)
{
	struct ethhdr *eth;
	__u8 mac[ETH_ALEN];

	if (!lookup(ctx))
		return XDP_PASS;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	return XDP_TX;
}

/* Where what needs no lookup goes. */
#define FIXED_PATH (1ULL << PRIMARY)
static const struct node fixed_node = {
	.ipv4 = 0x0c6433c6,
	.stations = { 0x00000002, 0x00020200, 0x01000000 },
	.ipv6 = { 0xb80d0120, 0x01000000, 0, 0x12000000 },
};

static __always_inline __u8 traffic_class(const struct ipv6hdr *ip)
{
	return bpf_ntohs(*(__be16 *)ip) >> 4;
}

/* Parse, and encapsulate to a fixed node. */
SEC("xdp.frags")
int parse_encapsulate(struct xdp_md *ctx)
{
	struct ports *ports;

	if (ethertype(ctx) == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		if (parse4(ctx, &ip, &ports))
			return XDP_PASS;
		return encapsulate4(ctx, FIXED_PATH, &fixed_node, ip->saddr, bpf_ntohs(ip->tot_len),
				    ip->tos);
	}
	if (ethertype(ctx) == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip;

		if (parse6(ctx, &ip, &ports))
			return XDP_PASS;
		return encapsulate6(ctx, FIXED_PATH, &fixed_node, ip->saddr.in6_u.u6_addr32[3],
				    bpf_ntohs(ip->payload_len) + sizeof(*ip), traffic_class(ip));
	}
	return XDP_PASS;
}

static __always_inline struct row *row_get(const struct frontend *frontend, __u32 hash)
{
	__u32 index = frontend->table * ROWS + (hash >> ROW_SHIFT);

	return bpf_map_lookup_elem(&rows, &index);
}

static __always_inline struct node *node_get(__u64 path)
{
	__u32 id = path >> PRIMARY & NODE_MASK;

	return bpf_map_lookup_elem(&nodes, &id);
}

static __always_inline int stage1_4(struct xdp_md *ctx)
{
	struct frontend *frontend;
	struct ports *ports;
	struct iphdr *ip;
	struct node *node;
	struct row *row;
	__u32 length, hash;
	__u64 path;
	__u8 tos;

	if (parse4(ctx, &ip, &ports))
		return XDP_PASS;
	frontend = lookup4(ip, ports);
	if (!frontend)
		return XDP_PASS;
	hash = hash4(ip, ports);
	length = bpf_ntohs(ip->tot_len);
	tos = ip->tos;
	row = row_get(frontend, hash);
	if (!row)
		return XDP_DROP;
	path = row->path;
	node = node_get(path);
	if (!node)
		return XDP_DROP;
	count(frontend->id, length);
	return encapsulate4(ctx, path, node, hash, length, tos);
}

static __always_inline int stage1_6(struct xdp_md *ctx)
{
	struct frontend *frontend;
	struct ports *ports;
	struct ipv6hdr *ip;
	struct node *node;
	struct row *row;
	__u32 length, hash;
	__u64 path, sum;
	__u8 tos;

	if (parse6(ctx, &ip, &ports))
		return XDP_PASS;
	sum = vip_sum(ip->daddr.in6_u.u6_addr32);
	frontend = lookup6(ip, ports, sum);
	if (!frontend)
		return XDP_PASS;
	hash = hash6(ip, ports, sum);
	length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	tos = traffic_class(ip);
	row = row_get(frontend, hash);
	if (!row)
		return XDP_DROP;
	path = row->path;
	node = node_get(path);
	if (!node)
		return XDP_DROP;
	count(frontend->id, length);
	return encapsulate6(ctx, path, node, hash, length, tos);
}

/* Stage 1 without anything that keeps connections: parse, frontend, hash, row, node,
 * counter, encapsulation with the chain.
 */
SEC("xdp.frags")
int bare_stage1(struct xdp_md *ctx)
{
	if (ethertype(ctx) == bpf_htons(ETH_P_IP))
		return stage1_4(ctx);
	if (ethertype(ctx) == bpf_htons(ETH_P_IPV6))
		return stage1_6(ctx);
	return XDP_PASS;
}

static __always_inline int ipip4(struct xdp_md *ctx, __u16 length)
{
	const __u16 total = length + sizeof(struct iphdr);
	__u32 sum = 0x0045 + 0x0040 + 0x0440 + (SELF4 & 0xffff) + (SELF4 >> 16);
	struct ethhdr *eth;
	struct iphdr *ip;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*ip)))
		return XDP_DROP;
	eth = (void *)(long)ctx->data;
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	write_eth(eth, &fixed_node, bpf_htons(ETH_P_IP));
	*(__be32 *)ip = bpf_htonl(0x45000000 | total);
	*((__be32 *)ip + 1) = bpf_htonl(0x00004000);
	*((__be32 *)ip + 2) = bpf_htonl(0x40040000);
	ip->saddr = SELF4;
	ip->daddr = fixed_node.ipv4;
	sum += bpf_htons(total) + (fixed_node.ipv4 & 0xffff) + (fixed_node.ipv4 >> 16);
	ip->check = fold(sum);
	return XDP_TX;
}

static __always_inline int ip6ip6(struct xdp_md *ctx, __u16 length)
{
	struct ipv6hdr *ip;
	struct ethhdr *eth;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*ip)))
		return XDP_DROP;
	eth = (void *)(long)ctx->data;
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	write_eth(eth, &fixed_node, bpf_htons(ETH_P_IPV6));
	*(__be32 *)ip = bpf_htonl(6 << 28);
	ip->payload_len = bpf_htons(length);
	ip->nexthdr = IPPROTO_IPV6;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, fixed_node.ipv6, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, fixed_node.ipv6, sizeof(ip->daddr));
	return XDP_TX;
}

static __always_inline int remember(void *map, const void *key)
{
	__u32 *known = bpf_map_lookup_elem(map, key), one = 1;

	return known ? 0 : bpf_map_update_elem(map, key, &one, BPF_ANY);
}

/* What a balancer with a connection table cannot do without: parse, LRU lookup, IPIP. */
SEC("xdp.frags")
int lru_ipip(struct xdp_md *ctx)
{
	struct ports *ports;

	if (ethertype(ctx) == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		if (parse4(ctx, &ip, &ports))
			return XDP_PASS;
		struct flow4 flow = { ip->saddr, ip->daddr, *(__be32 *)ports, ip->protocol };

		return remember(&flows4, &flow) ? XDP_DROP : ipip4(ctx, bpf_ntohs(ip->tot_len));
	}
	if (ethertype(ctx) == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip;

		if (parse6(ctx, &ip, &ports))
			return XDP_PASS;
		struct flow6 flow = { .ports = *(__be32 *)ports, .protocol = ip->nexthdr };

		__builtin_memcpy(flow.client, &ip->saddr, sizeof(flow.client));
		__builtin_memcpy(flow.vip, &ip->daddr, sizeof(flow.vip));
		return remember(&flows6, &flow) ?
			       XDP_DROP : ip6ip6(ctx, bpf_ntohs(ip->payload_len) + sizeof(*ip));
	}
	return XDP_PASS;
}

/* The least that serves a connection: parse, frontend, LRU lookup of the connection, counter,
 * address and port of its endpoint.
 */
SEC("xdp.frags")
int bare_stage2(struct xdp_md *ctx)
{
	if (ethertype(ctx) == bpf_htons(ETH_P_IP))
		return deliver4(ctx);
	if (ethertype(ctx) == bpf_htons(ETH_P_IPV6))
		return deliver6(ctx);
	return XDP_PASS;
}

/* The same of what another node encapsulated. It believes everybody. */
SEC("xdp.frags")
int bare_decap(struct xdp_md *ctx)
{
	struct ports *ports;

	if (ethertype(ctx) == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		if (parse4(ctx, &ip, &ports) ||
		    !is_tunnel(ports, (void *)(long)ctx->data_end, bpf_htons(ETH_P_IP)) ||
		    strip(ctx, OUTER4))
			return XDP_PASS;
		return deliver4(ctx);
	}
	if (ethertype(ctx) == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip;

		if (parse6(ctx, &ip, &ports) ||
		    !is_tunnel(ports, (void *)(long)ctx->data_end, bpf_htons(ETH_P_IPV6)) ||
		    strip(ctx, OUTER6))
			return XDP_PASS;
		return deliver6(ctx);
	}
	return XDP_PASS;
}

/* The least that gives replies their VIP: parse, LRU lookup, address and port. */
SEC("tcx/egress")
int bare_egress(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return reply4(skb, (void *)(eth + 1));
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return reply6(skb, (void *)(eth + 1));
	return TC_ACT_UNSPEC;
}

SEC("tcx/egress")
int empty_egress(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}
