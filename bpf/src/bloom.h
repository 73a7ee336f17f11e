/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "maps.h"

/* Fibonacci hashing: the upper bits of the product with 2^64 / golden ratio. */
static __always_inline __u32 bloom_bit(__u64 network)
{
	return network * 0x9e3779b97f4a7c15ULL >> 48;
}

/* Bloom filter of the /24 and /64 networks that contain VIPs, pools or aggregates. */
static __always_inline int bloom_has(__u64 network)
{
	__u32 bit = bloom_bit(network);
	__u32 index = bit / 64;
	__u64 *word = bpf_map_lookup_elem(&vip_filter, &index);

	return word && *word >> bit % 64 & 1;
}

static __always_inline int bloom_has_ipv4(__be32 address)
{
	return bloom_has(address & bpf_htonl(0xffffff00));
}

static __always_inline int bloom_has_ipv6(const void *address)
{
	return bloom_has(*(__u64 *)address);
}

static __always_inline int bloom_has_flow(const struct flow *flow)
{
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return bloom_has_ipv4(flow->vip.word[3]);
	return bloom_has((__u64)flow->vip.word[1] << 32 | flow->vip.word[0]);
}

/* Second filter: which of 64 parts of a network contain such addresses. Its word has the index of
 * the network's word in the first filter. Most packets to hosts near VIPs pass by it.
 */
static __always_inline int part_has(__u64 network, __u32 part)
{
	__u32 index = bloom_bit(network) / 64;
	__u64 *word = bpf_map_lookup_elem(&vip_parts, &index);

	return word && *word >> part & 1;
}

static __always_inline int part_has_ipv4(__be32 address)
{
	return part_has(address & bpf_htonl(0xffffff00), bpf_ntohl(address) / 4 % 64);
}

/* A part is the interface identifiers with the same most significant bit. */
static __always_inline int part_has_ipv6(const struct address *address)
{
	__u64 host = (__u64)bpf_ntohl(address->word[2]) << 32 | bpf_ntohl(address->word[3]);
	__u32 part = 0;

#pragma unroll
	for (int half = 32; half; half /= 2) {
		if (host >> half) {
			host >>= half;
			part += half;
		}
	}
	return part_has((__u64)address->word[1] << 32 | address->word[0], part);
}
