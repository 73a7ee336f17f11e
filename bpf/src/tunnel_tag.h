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

/* MAC of packets between nodes. It covers the outer addresses, the path option, and of the inner
 * packet the addresses, protocol, ports, fragment fields and the start of an ICMP message.
 *
 * Each half is Multilinear-HM (Lemire and Kaser, "Strongly universal string hashing is fast",
 * 2014): the upper half of a sum of one product per two words, to each of which a 64-bit word of
 * the key is added. The halves have separate keys. A blind forgery succeeds with probability 2^-64.
 * The products are independent of each other.
 *
 * The first pairs are common to all packets. The families in the second determine the number of the
 * others.
 */
enum tag_pair {
	TAG_PATH,
	/* Families, path's high part, option type, inner protocol, second word of the inner header.
	 */
	TAG_KIND,
	/* First two words behind the inner IP header, or 0. */
	TAG_TRANSPORT,
	/* Inner, then outer addresses: one pair for IPv4, four for IPv6. */
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
	/* Keeps the compiler from loading and spilling all words first. */
	asm volatile("" : "+r"(sum->first), "+r"(sum->second) : : "memory");
}

/* Returns the number of the next pair. */
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

/* Spreads the ten bits of the path's high part over bits that are 0 in both family numbers. */
static __always_inline __u32 tag_high(__u32 high)
{
	return (high & 0xf) << 4 | (high >> 4 & 0xf) << 12 | (high >> 8 & 1) | (high >> 9 & 1) << 8;
}

/* Input of the tag. Pointers into the frame are bounds-checked. */
struct tagged {
	/* Outer addresses. */
	const __be32 *from;
	const __be32 *to;
	const struct geneve_option *option;
	/* High part of the path. */
	__u32 high;
	/* Inner IP header without options. */
	const void *inner;
	/* The words behind it, or NULL. */
	const __be32 *transport;
	/* ADDRESS_FAMILY_IPV4 or ADDRESS_FAMILY_IPV6. */
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

/* Returns the words behind the inner IP header and its options, or NULL. */
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

/* High part of the path for a UDP header at this offset, or 0. */
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

/* 0 without an inner IP header. Global, so verified once. */
__noinline __u64 frame_tag(struct xdp_md *ctx, __u32 number, __u32 udp, __u32 inner, __u32 family)
{
	const struct tunnel_key *key = key_get(number);

	if (!key)
		return 0;
	if (family == ADDRESS_FAMILY_IPV4)
		return tag_outer(ctx, key, udp, inner, ADDRESS_FAMILY_IPV4);
	return tag_outer(ctx, key, udp, inner, ADDRESS_FAMILY_IPV6);
}

/* Tags with an unknown key count as missing: senders may switch keys earlier. */
static __always_inline int tag_check(struct xdp_md *ctx, const struct geneve_tag *option, __u32 udp,
				     __u32 inner, __u8 family)
{
	struct tunnel_policy *policy = tunnel_policy_get();
	__u64 claimed;
	__u32 number;
	__u8 flags;

	if (!policy)
		return DROP_TUNNEL_TAG;
	flags = policy->flags;
	if (!(flags & POLICY_KEYS))
		return flags & POLICY_TAGS ? DROP_TUNNEL_UNTAGGED : DROP_NONE;
	number = option->type - GENEVE_TAG_TYPE;
	claimed = tag_read(option);
	if (!number)
		return flags & POLICY_TAGS ? DROP_TUNNEL_UNTAGGED : DROP_NONE;
	if (!(flags & POLICY_KEY << number))
		return flags & POLICY_TAGS ? DROP_TUNNEL_TAG : DROP_NONE;
	return frame_tag(ctx, number, udp, inner, family) == claimed ? DROP_NONE : DROP_TUNNEL_TAG;
}
