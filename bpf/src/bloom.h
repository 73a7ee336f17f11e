/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "maps.h"

/* Fibonacci hashing: the upper bits of the product with 2^64 over the golden ratio. */
static __always_inline __u32 bloom_bit(__u64 network)
{
	return network * 0x9e3779b97f4a7c15ULL >> 48;
}

/* A Bloom filter of the networks with VIPs, pools or aggregates, by /24 of IPv4 and /64 of IPv6,
 * with one hash. Other packets pass before the first lookup in a hash map. A clear bit is
 * certain; a set one may be another network's.
 */
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

/* A second filter, of the 64 parts of each network. Their bits are a word at the index of the word
 * that has the network's bit. An address whose bit is clear is no VIP, and in no pool or aggregate.
 * So most hosts beside VIPs pass without a lookup of VIP and pool. A set bit may be another
 * network's.
 */
static __always_inline int part_has(__u64 network, __u32 part)
{
	__u32 index = bloom_bit(network) / 64;
	__u64 *word = bpf_map_lookup_elem(&vip_parts, &index);

	return word && *word >> part & 1;
}

/* A part is four addresses. */
static __always_inline int part_has_ipv4(__be32 address)
{
	return part_has(address & bpf_htonl(0xffffff00), bpf_ntohl(address) / 4 % 64);
}

/* A part is the addresses whose last 64 bits have the same highest bit that is set. Hosts often
 * count from 1 or are random, and pools lie between.
 */
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
