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

struct outer {
	struct path path;
	/* length includes the path's high part. hash is the node hash. */
	__u32 length;
	__u32 hash;
	__be16 protocol;
	__u8 tos;
	/* Added to the type of the path option (geneve.h). */
	__u8 type;
	/* Key number of the tag, or 0. */
	__u8 key;
};

/* Bytes of the path's high part. */
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
		.type = packet->no_forward ? ZONES : packet->zone_steps,
		.key = self_key(self),
	};

	return outer;
}

/* Entropy for RSS and ECMP (RFC 8926 section 3.3) in the dynamic range (RFC 6335 section 6). */
static __always_inline __be16 tunnel_source_port(__u32 hash)
{
	return bpf_htons(49152 + (hash & 0x3fff));
}

/* Writes all headers but the path's high part, whose size is extra. The tag is set to 0. */
static __always_inline void write_tunnel(struct tunnel *tunnel, const struct outer *outer,
					 __u32 extra)
{
	tunnel->udp.source = tunnel_source_port(outer->hash);
	tunnel->udp.dest = bpf_htons(GENEVE_PORT);
	tunnel->udp.len = bpf_htons(outer->length + sizeof(*tunnel));
	/* Permitted over IPv6 by RFC 6935 and RFC 6936: the inner packet has a checksum. */
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

/* Copies ECN (RFC 6040 section 4.1). A constant id is valid with DF (RFC 6864 section 4.1). */
static __always_inline void write_outer_ipv4(struct iphdr *ip, const struct outer *outer,
					     __be32 from, __be32 to)
{
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
	/* RFC 6438. */
	*(__be32 *)ip = bpf_htonl(6u << 28 | outer->tos << 20 | (outer->hash & 0xfffff));
	ip->payload_len = bpf_htons(outer->length + sizeof(struct tunnel));
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, from, sizeof(*from));
	__builtin_memcpy(&ip->daddr, to, sizeof(*to));
}
