/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "frame.h"
#include "geneve.h"
#include "maps.h"
#include "settings.h"

/* The tag of packets between nodes: who does not know the key can make none. It covers the outer
 * addresses, the option with the path, and what tells the inner flow: its addresses, protocol
 * and ports, identification and place of a fragment, the start of an ICMP message.
 *
 * Each half is Multilinear-HM of the words (Lemire and Kaser, "Strongly universal string hashing
 * is fast", 2014): the sum of a product for each two words, of which the upper half counts. Each
 * word is added to a 64-bit word of the key before. The halves have keys of their own. Whoever
 * has seen no tag guesses right once in 2^64 packets. Words are taken as they stand in the
 * packet. The products do not wait for each other.
 *
 * The first pairs of words are the same in all packets. The families, in the second, tell how many
 * follow.
 */
enum tag_pair {
	/* The two words of the path. */
	TAG_PATH,
	/* The families, the high part of the path, the option's type and the inner protocol; and the second word of the
	 * inner IP header: of IPv4 what a fragment is of, of IPv6 the length.
	 */
	TAG_KIND,
	/* The first two words behind the inner IP header; zero where it has less. */
	TAG_TRANSPORT,
	/* The inner addresses, then the outer ones: one pair for IPv4, four for IPv6. */
	TAG_ADDRESSES,
};

struct tag_sum {
	__u64 first;
	__u64 second;
};

static __always_inline void tag_pair(struct tag_sum *sum, const struct tunnel_key *key, int pair,
				     __u32 left, __u32 right)
{
	const __u64 *word = key->pair[pair].word;

	sum->first += (left + word[0]) * (right + word[1]);
	sum->second += (left + word[2]) * (right + word[3]);
	/* Else the compiler loads all words first, and spills them. */
	asm volatile("" : "+r"(sum->first), "+r"(sum->second) : : "memory");
}

/* Adds the addresses of an IP header, and returns the place behind. */
static __always_inline int tag_addresses(struct tag_sum *sum, const struct tunnel_key *key,
					 int pair, const __be32 *from, const __be32 *to,
					 const int family)
{
	tag_pair(sum, key, pair, from[0], to[0]);
	if (family == ADDRESS_FAMILY_IPV4)
		return pair + 1;
	tag_pair(sum, key, pair + 1, from[1], to[1]);
	tag_pair(sum, key, pair + 2, from[2], to[2]);
	tag_pair(sum, key, pair + 3, from[3], to[3]);
	return pair + 4;
}

/* The high part of the path, in bits of a word that are zero in the numbers of two families, of
 * eight bits each: these are 2 and 10. It has ten bits.
 */
static __always_inline __u32 tag_high(__u32 high)
{
	return (high & 0xf) << 4 | (high >> 4 & 0xf) << 12 | (high >> 8 & 1) | (high >> 9 & 1) << 8;
}

/* What a tag covers. Where it is in the frame, it was checked to be there. */
struct tagged {
	/* The outer addresses. */
	const __be32 *from;
	const __be32 *to;
	const struct geneve_option *option;
	/* The high part of the path. */
	__u32 high;
	/* The inner IP header, without options. */
	const void *inner;
	/* The words behind it, or NULL. */
	const __be32 *transport;
	/* ADDRESS_FAMILY_IPV4 or ADDRESS_FAMILY_IPV6, of the outer and the inner header. */
	int outer_family;
	int inner_family;
};

static __always_inline __u64 tag_of(const struct tunnel_key *key, const struct tagged *it)
{
	struct tag_sum sum = { .first = key->start[0], .second = key->start[1] };
	const struct iphdr *ip = it->inner;
	const struct ipv6hdr *ip6 = it->inner;
	__u32 protocol = it->inner_family == ADDRESS_FAMILY_IPV4 ? ip->protocol : ip6->nexthdr;
	__u32 kind = protocol | (__u32)it->option->type << 8 | it->outer_family << 16 |
		     it->inner_family << 24 | tag_high(it->high) << 16;
	int pair = TAG_ADDRESSES;

	tag_pair(&sum, key, TAG_PATH, it->option->path[0], it->option->path[1]);
	tag_pair(&sum, key, TAG_KIND, kind, ((const __be32 *)it->inner)[1]);
	if (it->transport)
		tag_pair(&sum, key, TAG_TRANSPORT, it->transport[0], it->transport[1]);
	else
		tag_pair(&sum, key, TAG_TRANSPORT, 0, 0);
	if (it->inner_family == ADDRESS_FAMILY_IPV4)
		pair = tag_addresses(&sum, key, pair, &ip->saddr, &ip->daddr, ADDRESS_FAMILY_IPV4);
	else
		pair = tag_addresses(&sum, key, pair, (void *)&ip6->saddr, (void *)&ip6->daddr,
				     ADDRESS_FAMILY_IPV6);
	tag_addresses(&sum, key, pair, it->from, it->to, it->outer_family);
	return (sum.first >> 32 << 32) | sum.second >> 32;
}

/* The tag as it stands in a packet. */
static __always_inline __u64 tag_read(const struct geneve_tag *option)
{
	return (__u64)option->tag[0] << 32 | option->tag[1];
}

static __always_inline void tag_write(struct geneve_tag *option, __u64 tag)
{
	option->tag[0] = tag >> 32;
	option->tag[1] = tag;
}

static __always_inline struct tunnel_key *key_get(__u32 number)
{
	return bpf_map_lookup_elem(&tunnel_keys, &number);
}

/* The words behind the inner IP header and its options, or NULL. */
static __always_inline const __be32 *tag_transport(const struct xdp_md *ctx, const void *inner,
						   __u32 at, int family)
{
	const struct ipv6hdr *ip6 = inner;
	const struct iphdr *ip = inner;
	__u32 header, length;
	const __be32 *words;

	if (family == ADDRESS_FAMILY_IPV4) {
		header = ip->ihl * 4;
		length = bpf_ntohs(ip->tot_len);
	} else {
		header = sizeof(*ip6);
		length = sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
	}
	words = frame_at(ctx, at + header);
	if (length < header + 2 * sizeof(*words) ||
	    (void *)(words + 2) > (void *)(long)ctx->data_end)
		return NULL;
	return words;
}

static __always_inline __u64 tag_inner(const struct xdp_md *ctx, const struct tunnel_key *key,
				       struct tagged *it, __u32 at, const int family)
{
	const int length =
		family == ADDRESS_FAMILY_IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);

	it->inner = frame_at(ctx, at);
	if (it->inner + length > (void *)(long)ctx->data_end)
		return 0;
	it->inner_family = family;
	it->transport = tag_transport(ctx, it->inner, at, family);
	return tag_of(key, it);
}

/* The high part of the path of a packet with a UDP header at this place; zero where it has none. */
static __always_inline __u32 tunnel_high(const struct xdp_md *ctx, __u32 at)
{
	const struct tunnel *tunnel = frame_at(ctx, at);
	const struct geneve_high *high = (const void *)(tunnel + 1);

	if ((void *)(high + 1) > (void *)(long)ctx->data_end ||
	    tunnel->tag.length != GENEVE_TAG_WORDS - 1 + OVERHEAD_HIGH / 4)
		return 0;
	return bpf_ntohl(high->path);
}

static __always_inline __u64 tag_outer(const struct xdp_md *ctx, const struct tunnel_key *key,
				       __u32 at, __u32 inner_at, const int family)
{
	const __u32 length =
		family == ADDRESS_FAMILY_IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	const struct tunnel *tunnel = frame_at(ctx, at);
	const void *ip = frame_at(ctx, at - length);
	struct tagged it = {
		.outer_family = family,
		.option = &tunnel->option,
		.high = tunnel_high(ctx, at),
	};

	if ((void *)(&tunnel->option + 1) > (void *)(long)ctx->data_end ||
	    ip + length > (void *)(long)ctx->data_end)
		return 0;
	if (family == ADDRESS_FAMILY_IPV4) {
		it.from = &((const struct iphdr *)ip)->saddr;
		it.to = &((const struct iphdr *)ip)->daddr;
	} else {
		it.from = (void *)&((const struct ipv6hdr *)ip)->saddr;
		it.to = (void *)&((const struct ipv6hdr *)ip)->daddr;
	}
	if (tunnel->geneve.protocol == bpf_htons(ETH_P_IP))
		return tag_inner(ctx, key, &it, inner_at, ADDRESS_FAMILY_IPV4);
	return tag_inner(ctx, key, &it, inner_at, ADDRESS_FAMILY_IPV6);
}

/* The tag by the key of the number, of a frame with the UDP header and the inner packet at these
 * offsets; zero where it has no inner IP header. Verified on its own.
 */
__noinline __u64 frame_tag(struct xdp_md *ctx, __u32 number, __u32 udp, __u32 inner, __u32 family)
{
	const struct tunnel_key *key = key_get(number);

	if (!key)
		return 0;
	if (family == ADDRESS_FAMILY_IPV4)
		return tag_outer(ctx, key, udp, inner, ADDRESS_FAMILY_IPV4);
	return tag_outer(ctx, key, udp, inner, ADDRESS_FAMILY_IPV6);
}

/* What the tag of a packet from a node says: DROP_NONE or the reason to drop it. A tag by a key
 * that is not accepted is none: the sender may have a new key earlier.
 */
static __always_inline int tag_check(struct xdp_md *ctx, const struct geneve_tag *option, __u32 udp,
				     __u32 inner, __u8 family)
{
	struct trust *trust = trust_get();
	__u64 claimed;
	__u32 number;
	__u8 flags;

	if (!trust)
		return DROP_TUNNEL_TAG;
	flags = trust->flags;
	if (!(flags & TRUST_KEYS))
		return flags & TRUST_TAGS ? DROP_TUNNEL_UNTAGGED : DROP_NONE;
	number = option->type - GENEVE_TAG_TYPE;
	claimed = tag_read(option);
	if (!number)
		return flags & TRUST_TAGS ? DROP_TUNNEL_UNTAGGED : DROP_NONE;
	if (!(flags & TRUST_KEY << number))
		return flags & TRUST_TAGS ? DROP_TUNNEL_TAG : DROP_NONE;
	return frame_tag(ctx, number, udp, inner, family) == claimed ? DROP_NONE : DROP_TUNNEL_TAG;
}
