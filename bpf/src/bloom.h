/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "maps.h"

/* A Bloom filter of the networks with VIPs, pools or aggregates, by /24 of IPv4 and /64 of IPv6,
 * with one hash. Other packets pass before the first lookup in a hash map. A clear bit is
 * certain; a set one may be another network's.
 */
static __always_inline int bloom_has(__u64 network)
{
	/* Fibonacci hashing: the upper bits of the product with 2^64 over the golden ratio. */
	__u32 bit = network * 0x9e3779b97f4a7c15ULL >> 48;
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
