/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "floor_parse.h"

/* The sum of the words of a flow, each times a constant, and the finalizer of MurmurHash3: the
 * multiplications do not wait for each other.
 */
static __always_inline __u32 hash_sum(__u64 sum)
{
	sum = (sum ^ sum >> 33) * 0xff51afd7ed558ccd;
	sum = (sum ^ sum >> 33) * 0xc4ceb9fe1a85ec53;
	return sum >> 32;
}

static __always_inline __u32 hash4(const struct iphdr *ip, const struct ports *ports)
{
	return hash_sum(ip->saddr * 0xa54ff53a5f1d36f1 + ip->daddr * 0x5be0cd19137e2179 +
			*(__u32 *)ports * 0xcbbb9d5dc1059ed8 + ip->protocol * 0x629a292a367cd507);
}

/* sum is the vip_sum. */
static __always_inline __u32 hash6(const struct ipv6hdr *ip, const struct ports *ports, __u64 sum)
{
	const __be32 *client = ip->saddr.in6_u.u6_addr32;

	return hash_sum(client[0] * 0x6a09e667f3bcc908 + client[1] * 0xbb67ae8584caa73b +
			client[2] * 0x3c6ef372fe94f82b + client[3] * 0xa54ff53a5f1d36f1 + sum +
			*(__u32 *)ports * 0xcbbb9d5dc1059ed8 + ip->nexthdr * 0x629a292a367cd507);
}

/* UDP, Geneve (RFC 8926), an option with the path and one with an empty tag: 40 bytes. All headers are written by
 * words, as the bytes stand in them.
 */
#define TUNNEL_WORDS 10
#define TUNNEL (TUNNEL_WORDS * 4)
#define OUTER4 (sizeof(struct iphdr) + TUNNEL)
#define OUTER6 (sizeof(struct ipv6hdr) + TUNNEL)

_Static_assert(OUTER4 == 60, "encapsulation of IPv4");
_Static_assert(OUTER6 == 80, "encapsulation of IPv6");

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

static __always_inline void write_eth(void *start, const struct node *node, __be16 protocol)
{
	__u32 *word = start;

	word[0] = node->stations[0];
	word[1] = node->stations[1];
	word[2] = node->stations[2];
	*(__be16 *)(word + 3) = protocol;
}

/* length: bytes of the inner packet. */
static __always_inline void write_tunnel(__u32 *word, __u64 path, __u32 hash, __u32 length,
					 __u16 protocol)
{
	word[0] = bpf_htonl((0xc000 | (hash & 0x3fff)) << 16 | 6081);
	word[1] = bpf_htonl((length + TUNNEL) << 16);
	word[2] = bpf_htonl(0x06400000 | protocol);
	word[3] = bpf_htonl(0x4d4c5200);
	word[4] = bpf_htonl(0xff4d8202);
	word[5] = bpf_htonl(path >> 32);
	word[6] = bpf_htonl(path);
	word[7] = bpf_htonl(0xff4d1002);
	word[8] = 0;
	word[9] = 0;
}

#define SELF4 0x0b6433c6 /* 198.51.100.11, as loaded from a packet */

static __always_inline int encapsulate4(struct xdp_md *ctx, __u64 path, const struct node *node,
					__u32 hash, __u32 length, __u8 tos)
{
	__u32 first = bpf_htonl(0x45000000 | tos << 16 | (length + OUTER4));
	/* Do not fragment; 64 hops, UDP. */
	__u32 second = bpf_htonl(0x4000), third = bpf_htonl(0x40110000);
	__u32 *word;
	void *eth;

	if (bpf_xdp_adjust_head(ctx, -(int)OUTER4))
		return XDP_DROP;
	eth = (void *)(long)ctx->data;
	if (eth + ETH_HLEN + OUTER4 > (void *)(long)ctx->data_end)
		return XDP_DROP;
	write_eth(eth, node, bpf_htons(ETH_P_IP));
	word = eth + ETH_HLEN;
	word[0] = first;
	word[1] = second;
	word[2] = third | (__u32)fold((__u64)first + second + third + SELF4 + node->ipv4) << 16;
	word[3] = SELF4;
	word[4] = node->ipv4;
	write_tunnel(word + 5, path, hash, length, ETH_P_IP);
	return XDP_TX;
}

static __always_inline int encapsulate6(struct xdp_md *ctx, __u64 path, const struct node *node,
					__u32 hash, __u32 length, __u8 tos)
{
	__u32 *word;
	void *eth;

	if (bpf_xdp_adjust_head(ctx, -(int)OUTER6))
		return XDP_DROP;
	eth = (void *)(long)ctx->data;
	if (eth + ETH_HLEN + OUTER6 > (void *)(long)ctx->data_end)
		return XDP_DROP;
	write_eth(eth, node, bpf_htons(ETH_P_IPV6));
	word = eth + ETH_HLEN;
	word[0] = bpf_htonl(6u << 28 | tos << 20 | (hash & 0xfffff));
	word[1] = bpf_htonl((length + TUNNEL) << 16 | IPPROTO_UDP << 8 | 64);
	word[2] = bpf_htonl(0x20010db8);
	word[3] = bpf_htonl(1);
	word[4] = 0;
	word[5] = bpf_htonl(0x11);
	word[6] = node->ipv6[0];
	word[7] = node->ipv6[1];
	word[8] = node->ipv6[2];
	word[9] = node->ipv6[3];
	write_tunnel(word + 10, path, hash, length, ETH_P_IPV6);
	return XDP_TX;
}
