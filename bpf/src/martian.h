/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "address.h"
#include "bloom.h"
#include "frontend.h"
#include "maps.h"
#include "source_ranges.h"

/* Martian sources (RFC 1812 section 5.3.7): addresses that no remote client can have. */

/* Matches "this" network, loopback, multicast and the limited broadcast address. */
static __always_inline int is_martian_ipv4(__be32 source)
{
	__u8 first = source;

	return first == 0 || first == 127 || (first & 0xf0) == 224 || source == 0xffffffff;
}

/* Matches multicast, and by 64 zero bits unspecified, loopback and IPv4-embedding addresses. */
static __always_inline int is_martian_ipv6(const __be32 *word)
{
	return (word[0] & 0xff) == 0xff || !(word[0] | word[1]);
}

/* For the fast path. False positives are possible. */
static __always_inline int may_be_martian_ipv4(__be32 source)
{
	return is_martian_ipv4(source) || bloom_has_ipv4(source);
}

static __always_inline int may_be_martian_ipv6(const void *source)
{
	return is_martian_ipv6(source) || bloom_has_ipv6(source);
}

/* For the full path; inlined, and false for nearly all packets. */
static __always_inline int may_be_martian(const struct flow *flow)
{
	return flow->family == ADDRESS_FAMILY_IPV4 ? may_be_martian_ipv4(flow->client.word[3]) :
						     may_be_martian_ipv6(&flow->client);
}

/* Nodes may have addresses of a pool, which the operator does not assign. */
static __always_inline int client_is_ours(const struct self *self, const struct flow *flow)
{
	/* Linux 6.1 rejects map keys in arguments of global functions. */
	const struct address client = flow->client;

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		if (!bloom_has_ipv4(client.word[3]))
			return 0;
	} else if (!bloom_has_ipv6(&client)) {
		return 0;
	}
	if (is_vip(&client))
		return 1;
	if (bpf_map_lookup_elem(&node_addresses, &client) || is_from_self(self, flow))
		return 0;
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return set_holds_ipv4(SOURCE_SET_POOLS, client.word[3]);
	return set_holds_ipv6(SOURCE_SET_POOLS, &client);
}

__noinline int is_martian(const struct self *self, const struct flow *flow)
{
	if (!self || !flow)
		return 0;
	if (flow->family == ADDRESS_FAMILY_IPV4 ? is_martian_ipv4(flow->client.word[3]) :
						  is_martian_ipv6(flow->client.word))
		return 1;
	return client_is_ours(self, flow);
}
