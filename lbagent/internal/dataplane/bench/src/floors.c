//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */

/* The least that a program of a given kind can do, written as tightly as it goes, to
 * measure the data plane against. They share no code with it, so that a change
 * there moves no floor. Bounds are checked as the kernel demands and headers as
 * correctness does: version, header length, fragments, TCP or UDP.
 */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

#define ROWS 4096
#define ROW_SHIFT 20
#define CHAIN_LENGTH 3

struct key4 {
	__be32 vip;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct key6 {
	__be32 vip[4];
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct frontend {
	__u32 id;
	__u32 table;
};

struct row {
	__u16 primary;
	__u16 chain[CHAIN_LENGTH];
};

/* Addresses and the prepared next hop of a node. */
struct node {
	__be32 ipv4;
	__u8 destination[ETH_ALEN];
	__u8 source[ETH_ALEN];
	__be32 ipv6[4];
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* Entries are set by the loader to what the data plane has, where it has the like. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct key4);
	__type(value, struct frontend);
} frontends4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct key6);
	__type(value, struct frontend);
} frontends6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

struct flow4 {
	__be32 client;
	__be32 vip;
	__be32 ports;
	__u32 protocol;
};

struct flow6 {
	__be32 client[4];
	__be32 vip[4];
	__be32 ports;
	__u32 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow4);
	__type(value, __u32);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow6);
	__type(value, __u32);
} flows6 SEC(".maps");

/* The first 4 bytes of TCP and UDP. */
struct ports {
	__be16 source;
	__be16 destination;
};

/* Ethernet, IPv4 without options, TCP or UDP; zero where the frame is that. */
static __always_inline int parse4(struct xdp_md *ctx, struct iphdr **ip, struct ports **ports)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	*ip = (void *)(eth + 1);
	*ports = (void *)(*ip + 1);
	if ((void *)*ports + sizeof(struct udphdr) > (void *)(long)ctx->data_end)
		return -1;
	if (*(__u8 *)*ip != 0x45 || (*ip)->frag_off & bpf_htons(0x3fff))
		return -1;
	return (*ip)->protocol != IPPROTO_TCP && (*ip)->protocol != IPPROTO_UDP;
}

static __always_inline int parse6(struct xdp_md *ctx, struct ipv6hdr **ip, struct ports **ports)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	*ip = (void *)(eth + 1);
	*ports = (void *)(*ip + 1);
	if ((void *)*ports + sizeof(struct udphdr) > (void *)(long)ctx->data_end)
		return -1;
	if ((*ip)->version != 6)
		return -1;
	return (*ip)->nexthdr != IPPROTO_TCP && (*ip)->nexthdr != IPPROTO_UDP;
}

static __always_inline __be16 ethertype(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) > (void *)(long)ctx->data_end ? 0 : eth->h_proto;
}

static __always_inline struct frontend *lookup4(const struct iphdr *ip, const struct ports *ports)
{
	struct key4 key = { .vip = ip->daddr, .port = ports->destination, .protocol = ip->protocol };

	return bpf_map_lookup_elem(&frontends4, &key);
}

static __always_inline struct frontend *lookup6(const struct ipv6hdr *ip, const struct ports *ports)
{
	struct key6 key = { .port = ports->destination, .protocol = ip->nexthdr };

	__builtin_memcpy(key.vip, &ip->daddr, sizeof(key.vip));
	return bpf_map_lookup_elem(&frontends6, &key);
}

static __always_inline struct frontend *lookup(struct xdp_md *ctx)
{
	struct ports *ports;

	if (ethertype(ctx) == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		return parse4(ctx, &ip, &ports) ? NULL : lookup4(ip, ports);
	}
	if (ethertype(ctx) == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip;

		return parse6(ctx, &ip, &ports) ? NULL : lookup6(ip, ports);
	}
	return NULL;
}

/* Jenkins' hash as the kernel has it (lookup3: jhash_3words, and jhash2 over 9 words). */

static __always_inline __u32 rotate(__u32 value, int bits)
{
	return value << bits | value >> (32 - bits);
}

#define MIX(a, b, c)                                                                               \
	do {                                                                                       \
		a -= c; a ^= rotate(c, 4); c += b;                                                 \
		b -= a; b ^= rotate(a, 6); a += c;                                                 \
		c -= b; c ^= rotate(b, 8); b += a;                                                 \
		a -= c; a ^= rotate(c, 16); c += b;                                                \
		b -= a; b ^= rotate(a, 19); a += c;                                                \
		c -= b; c ^= rotate(b, 4); b += a;                                                 \
	} while (0)

#define FINAL(a, b, c)                                                                             \
	do {                                                                                       \
		c ^= b; c -= rotate(b, 14);                                                        \
		a ^= c; a -= rotate(c, 11);                                                        \
		b ^= a; b -= rotate(a, 25);                                                        \
		c ^= b; c -= rotate(b, 16);                                                        \
		a ^= c; a -= rotate(c, 4);                                                         \
		b ^= a; b -= rotate(a, 14);                                                        \
		c ^= b; c -= rotate(b, 24);                                                        \
	} while (0)

static __always_inline __u32 hash4(const struct iphdr *ip, const struct ports *ports)
{
	__u32 a, b, c;

	a = b = c = 0xdeadbeef + 12 + ip->protocol;
	a += ip->saddr;
	b += ip->daddr;
	c += *(__u32 *)ports;
	FINAL(a, b, c);
	return c;
}

static __always_inline __u32 hash6(const struct ipv6hdr *ip, const struct ports *ports)
{
	const __be32 *client = ip->saddr.in6_u.u6_addr32, *vip = ip->daddr.in6_u.u6_addr32;
	__u32 a, b, c;

	a = b = c = 0xdeadbeef + 36 + ip->nexthdr;
	a += client[0];
	b += client[1];
	c += client[2];
	MIX(a, b, c);
	a += client[3];
	b += vip[0];
	c += vip[1];
	MIX(a, b, c);
	a += vip[2];
	b += vip[3];
	c += *(__u32 *)ports;
	FINAL(a, b, c);
	return c;
}

/* UDP, Geneve (RFC 8926) and an option with the asking node and the chain: 28 bytes. */
struct tunnel {
	struct udphdr udp;
	__u8 option_words;
	__u8 flags;
	__be16 protocol;
	__be32 vni;
	__be32 option;
	__be16 asking;
	__be16 chain[CHAIN_LENGTH];
} __attribute__((packed));

struct outer4 {
	struct ethhdr eth;
	struct iphdr ip;
	struct tunnel tunnel;
} __attribute__((packed));

struct outer6 {
	struct ethhdr eth;
	struct ipv6hdr ip;
	struct tunnel tunnel;
} __attribute__((packed));

_Static_assert(sizeof(struct outer4) == ETH_HLEN + 48, "encapsulation of IPv4");
_Static_assert(sizeof(struct outer6) == ETH_HLEN + 68, "encapsulation of IPv6");

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

static __always_inline void write_eth(struct ethhdr *eth, const struct node *node, __be16 protocol)
{
	__builtin_memcpy(eth->h_dest, node->destination, ETH_ALEN);
	__builtin_memcpy(eth->h_source, node->source, ETH_ALEN);
	eth->h_proto = protocol;
}

/* length: bytes of the inner packet. */
static __always_inline void write_tunnel(struct tunnel *tunnel, const struct row *row, __u32 hash,
					 __u16 length, __be16 protocol)
{
	tunnel->udp.source = bpf_htons(0xc000 | (hash & 0x3fff));
	tunnel->udp.dest = bpf_htons(6081);
	tunnel->udp.len = bpf_htons(length + sizeof(*tunnel));
	tunnel->udp.check = 0;
	tunnel->option_words = 3;
	tunnel->flags = 0x40;
	tunnel->protocol = protocol;
	tunnel->vni = bpf_htonl(0x4d4c5200);
	tunnel->option = bpf_htonl(0xff4d8102);
	tunnel->asking = 0;
	__builtin_memcpy(tunnel->chain, row->chain, sizeof(tunnel->chain));
}

#define SELF4 0x0b6433c6 /* 198.51.100.11, as loaded from a packet */

static __always_inline int encapsulate4(struct xdp_md *ctx, const struct row *row,
					const struct node *node, __u32 hash, __u16 length)
{
	const __u16 total = length + sizeof(struct outer4) - ETH_HLEN;
	/* The words of the header that do not change, added up. */
	__u32 sum = 0x0045 + 0x0040 + 0x1140 + (SELF4 & 0xffff) + (SELF4 >> 16);
	struct outer4 *outer;

	if (bpf_xdp_adjust_head(ctx, ETH_HLEN - (int)sizeof(*outer)))
		return XDP_DROP;
	outer = (void *)(long)ctx->data;
	if ((void *)(outer + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	write_eth(&outer->eth, node, bpf_htons(ETH_P_IP));
	*(__be32 *)&outer->ip = bpf_htonl(0x45000000 | total);
	*((__be32 *)&outer->ip + 1) = bpf_htonl(0x00004000);
	*((__be32 *)&outer->ip + 2) = bpf_htonl(0x40110000);
	outer->ip.saddr = SELF4;
	outer->ip.daddr = node->ipv4;
	sum += bpf_htons(total) + (node->ipv4 & 0xffff) + (node->ipv4 >> 16);
	outer->ip.check = fold(sum);
	write_tunnel(&outer->tunnel, row, hash, length, bpf_htons(ETH_P_IP));
	return XDP_TX;
}

static __always_inline int encapsulate6(struct xdp_md *ctx, const struct row *row,
					const struct node *node, __u32 hash, __u16 length)
{
	struct outer6 *outer;

	if (bpf_xdp_adjust_head(ctx, ETH_HLEN - (int)sizeof(*outer)))
		return XDP_DROP;
	outer = (void *)(long)ctx->data;
	if ((void *)(outer + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	write_eth(&outer->eth, node, bpf_htons(ETH_P_IPV6));
	*(__be32 *)&outer->ip = bpf_htonl(6 << 28 | (hash & 0xfffff));
	outer->ip.payload_len = bpf_htons(length + sizeof(outer->tunnel));
	outer->ip.nexthdr = IPPROTO_UDP;
	outer->ip.hop_limit = 64;
	outer->ip.saddr.in6_u.u6_addr32[0] = bpf_htonl(0x20010db8);
	outer->ip.saddr.in6_u.u6_addr32[1] = bpf_htonl(1);
	outer->ip.saddr.in6_u.u6_addr32[2] = 0;
	outer->ip.saddr.in6_u.u6_addr32[3] = bpf_htonl(0x11);
	__builtin_memcpy(&outer->ip.daddr, node->ipv6, sizeof(node->ipv6));
	write_tunnel(&outer->tunnel, row, hash, length, bpf_htons(ETH_P_IPV6));
	return XDP_TX;
}

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
static const struct row fixed_row = { .primary = 1 };
static const struct node fixed_node = {
	.ipv4 = 0x0c6433c6,
	.destination = { 2, 0, 0, 0, 0, 2 },
	.source = { 2, 0, 0, 0, 0, 1 },
	.ipv6 = { 0xb80d0120, 0x01000000, 0, 0x12000000 },
};

/* Parse, and encapsulate to a fixed node. */
SEC("xdp.frags")
int parse_encapsulate(struct xdp_md *ctx)
{
	struct ports *ports;

	if (ethertype(ctx) == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		if (parse4(ctx, &ip, &ports))
			return XDP_PASS;
		return encapsulate4(ctx, &fixed_row, &fixed_node, ip->saddr, bpf_ntohs(ip->tot_len));
	}
	if (ethertype(ctx) == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip;

		if (parse6(ctx, &ip, &ports))
			return XDP_PASS;
		return encapsulate6(ctx, &fixed_row, &fixed_node, ip->saddr.in6_u.u6_addr32[3],
				    bpf_ntohs(ip->payload_len) + sizeof(*ip));
	}
	return XDP_PASS;
}

static __always_inline void count(__u32 id, __u32 bytes)
{
	struct counter *counter = bpf_map_lookup_elem(&counters, &id);

	if (counter) {
		counter->packets++;
		counter->bytes += bytes;
	}
}

static __always_inline struct row *row_get(const struct frontend *frontend, __u32 hash)
{
	__u32 index = frontend->table * ROWS + (hash >> ROW_SHIFT);

	return bpf_map_lookup_elem(&rows, &index);
}

static __always_inline struct node *node_get(const struct row *row)
{
	__u32 id = row->primary;

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

	if (parse4(ctx, &ip, &ports))
		return XDP_PASS;
	frontend = lookup4(ip, ports);
	if (!frontend)
		return XDP_PASS;
	hash = hash4(ip, ports);
	length = bpf_ntohs(ip->tot_len);
	row = row_get(frontend, hash);
	if (!row)
		return XDP_DROP;
	node = node_get(row);
	if (!node)
		return XDP_DROP;
	count(frontend->id, length);
	return encapsulate4(ctx, row, node, hash, length);
}

static __always_inline int stage1_6(struct xdp_md *ctx)
{
	struct frontend *frontend;
	struct ports *ports;
	struct ipv6hdr *ip;
	struct node *node;
	struct row *row;
	__u32 length, hash;

	if (parse6(ctx, &ip, &ports))
		return XDP_PASS;
	frontend = lookup6(ip, ports);
	if (!frontend)
		return XDP_PASS;
	hash = hash6(ip, ports);
	length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	row = row_get(frontend, hash);
	if (!row)
		return XDP_DROP;
	node = node_get(row);
	if (!node)
		return XDP_DROP;
	count(frontend->id, length);
	return encapsulate6(ctx, row, node, hash, length);
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

SEC("tcx/egress")
int empty_egress(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}
