/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "floor_parse.h"

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
