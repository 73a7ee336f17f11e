/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>

#include "csum.h"
#include "geneve.h"
#include "path.h"
#include "settings.h"
#include "types.h"

/* What the outer headers say of the packet. */
struct outer {
	struct path path;
	/* Bytes of the packet with the high part of its path, and its hash for the node. */
	__u32 length;
	__u32 hash;
	__be16 protocol;
	__u8 tos;
	/* By how much the type of the option with the path is higher: see geneve.h. */
	__u8 type;
	/* The number of the key of its tag, or zero. */
	__u8 key;
};

/* How many bytes a path takes beyond struct tunnel. */
static __always_inline __u32 path_extra(struct path path)
{
	return path.high ? OVERHEAD_HIGH : 0;
}

static __always_inline struct outer outer_of(const struct packet *packet, const struct self *self)
{
	struct outer outer = {
		.path = packet->path,
		.length = packet->length + path_extra(packet->path),
		.hash = packet->node_hash,
		.protocol = packet->flow.family == ADDRESS_FAMILY_IPV4 ? bpf_htons(ETH_P_IP) :
									 bpf_htons(ETH_P_IPV6),
		.tos = packet->tos,
		.type = packet->asks_nobody ? ZONES : packet->zone_steps,
		.key = self_key(self),
	};

	return outer;
}

/* The outer source port carries the flow's entropy for RSS and ECMP, in the dynamic range
 * (RFC 6335 section 6), as RFC 8926 section 3.3 asks.
 */
static __always_inline __be16 tunnel_source_port(__u32 hash)
{
	return bpf_htons(49152 + (hash & 0x3fff));
}

/* Writes all but the high part of the path, of which extra are the bytes. The tag is zero. */
static __always_inline void write_tunnel(struct tunnel *tunnel, const struct outer *outer,
					 __u32 extra)
{
	tunnel->udp.source = tunnel_source_port(outer->hash);
	tunnel->udp.dest = bpf_htons(GENEVE_PORT);
	tunnel->udp.len = bpf_htons(outer->length + sizeof(*tunnel));
	/* RFC 6935 and RFC 6936 permit this over IPv6: the inner packet has a checksum. */
	tunnel->udp.check = 0;
	tunnel->geneve.version_length = GENEVE_OPTION_WORDS + GENEVE_TAG_WORDS + extra / 4;
	tunnel->geneve.flags = GENEVE_FLAG_CRITICAL;
	tunnel->geneve.protocol = outer->protocol;
	tunnel->geneve.vni = bpf_htonl(GENEVE_VNI << 8);
	tunnel->option.class = bpf_htons(GENEVE_OPTION_CLASS);
	tunnel->option.type = GENEVE_OPTION_TYPE + outer->type;
	tunnel->option.length = GENEVE_OPTION_WORDS - 1;
	tunnel->option.path[0] = bpf_htonl(outer->path.word >> 32);
	tunnel->option.path[1] = bpf_htonl(outer->path.word);
	tunnel->tag.class = bpf_htons(GENEVE_OPTION_CLASS);
	tunnel->tag.type = GENEVE_TAG_TYPE + outer->key;
	tunnel->tag.length = GENEVE_TAG_WORDS - 1 + extra / 4;
	tunnel->tag.tag[0] = 0;
	tunnel->tag.tag[1] = 0;
}

/* RFC 6040 section 4.1: the outer header carries the inner ECN field. A constant
 * identification suits atomic datagrams (RFC 6864 section 4.1).
 */
static __always_inline void write_outer_ipv4(struct iphdr *ip, const struct outer *outer,
					     __be32 from, __be32 to)
{
	/* The header by words. */
	__u32 first = bpf_htonl(0x45 << 24 | outer->tos << 16 | (outer->length + OVERHEAD_IPV4));
	__u32 second = bpf_htonl(IPV4_DONT_FRAGMENT);
	__u32 third = bpf_htonl(64 << 24 | IPPROTO_UDP << 16);
	__u32 *word = (__u32 *)ip;
	__u32 check = csum_fold((__u64)first + second + third + from + to);

	word[0] = first;
	word[1] = second;
	word[2] = third | check << 16;
	word[3] = from;
	word[4] = to;
}

static __always_inline void write_outer_ipv6(struct ipv6hdr *ip, const struct outer *outer,
					     const struct address *from, const struct address *to)
{
	/* RFC 6438: the flow label spreads like the source port. */
	*(__be32 *)ip = bpf_htonl(6u << 28 | outer->tos << 20 | (outer->hash & 0xfffff));
	ip->payload_len = bpf_htons(outer->length + sizeof(struct tunnel));
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, from, sizeof(*from));
	__builtin_memcpy(&ip->daddr, to, sizeof(*to));
}
