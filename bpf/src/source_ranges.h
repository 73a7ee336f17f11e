/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"

/* Service.spec.loadBalancerSourceRanges: the sources that may reach a frontend. The ingress
 * node checks them; a packet from another node was checked there. The pools' prefixes are a set
 * of the same maps.
 */

/* Reports whether a prefix of the set holds the client. A set without prefixes of the client's
 * family holds no such client.
 */
__noinline int source_in_ranges(const struct flow *flow, __u32 set)
{
	if (!flow)
		return 0;
	trace_step(TRACE_SOURCE_CHECKED);
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct source_range_key4 key = {
			.prefixlen = SOURCE_SET_BITS + 32,
			.set = set,
			.address = flow->client.word[3],
		};

		return bpf_map_lookup_elem(&source_ranges4, &key) != NULL;
	}

	struct source_range_key6 key = {
		.prefixlen = SOURCE_SET_BITS + 128,
		.set = set,
		.address = flow->client,
	};

	return bpf_map_lookup_elem(&source_ranges6, &key) != NULL;
}

/* Reports whether an address belongs to a pool, so that it may become a VIP. */
static __always_inline int pools_hold_ipv4(__be32 address)
{
	struct source_range_key4 key = {
		.prefixlen = SOURCE_SET_BITS + 32,
		.set = SOURCE_SET_POOLS,
		.address = address,
	};

	return bpf_map_lookup_elem(&source_ranges4, &key) != NULL;
}

static __always_inline int pools_hold_ipv6(const struct address *address)
{
	struct source_range_key6 key = {
		.prefixlen = SOURCE_SET_BITS + 128,
		.set = SOURCE_SET_POOLS,
		.address = *address,
	};

	return bpf_map_lookup_elem(&source_ranges6, &key) != NULL;
}

/* Reports whether the destination belongs to a pool. */
__noinline int is_pool_address(const struct flow *flow)
{
	if (!flow)
		return 0;
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return pools_hold_ipv4(flow->vip.word[3]);
	return pools_hold_ipv6(&flow->vip);
}

/* Reports whether the client may reach the frontend. */
static __always_inline int source_allowed(const struct packet *packet,
					  const struct frontend *frontend)
{
	return !frontend->ranges || source_in_ranges(&packet->flow, frontend->ranges);
}
