/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "drop_reason.h"
#include "maps.h"
#include "service_proxy.h"

/* Service.spec.loadBalancerSourceRanges, and the prefixes of pools and aggregates. */

/* Reports whether the set contains the client. False without a prefix of the client's family. */
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

static __always_inline int set_holds_ipv4(__u32 set, __be32 address)
{
	struct source_range_key4 key = {
		.prefixlen = SOURCE_SET_BITS + 32,
		.set = set,
		.address = address,
	};

	return bpf_map_lookup_elem(&source_ranges4, &key) != NULL;
}

static __always_inline int set_holds_ipv6(__u32 set, const struct address *address)
{
	struct source_range_key6 key = {
		.prefixlen = SOURCE_SET_BITS + 128,
		.set = set,
		.address = *address,
	};

	return bpf_map_lookup_elem(&source_ranges6, &key) != NULL;
}

/* Drop reason for an address that would loop, or DROP_NONE. */
static __always_inline int unassigned_ipv4(const struct self *self, __be32 address)
{
	if (service_proxy)
		return DROP_NONE;
	if (set_holds_ipv4(SOURCE_SET_POOLS, address))
		return DROP_POOL_UNASSIGNED;
	if (self->flags & SELF_AGGREGATES && set_holds_ipv4(SOURCE_SET_AGGREGATES, address))
		return DROP_AGGREGATE_UNASSIGNED;
	return DROP_NONE;
}

static __always_inline int unassigned_ipv6(const struct self *self, const struct address *address)
{
	if (service_proxy)
		return DROP_NONE;
	if (set_holds_ipv6(SOURCE_SET_POOLS, address))
		return DROP_POOL_UNASSIGNED;
	if (self->flags & SELF_AGGREGATES && set_holds_ipv6(SOURCE_SET_AGGREGATES, address))
		return DROP_AGGREGATE_UNASSIGNED;
	return DROP_NONE;
}

__noinline int unassigned(const struct self *self, const struct flow *flow)
{
	if (!self || !flow)
		return DROP_NONE;
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return unassigned_ipv4(self, flow->vip.word[3]);
	return unassigned_ipv6(self, &flow->vip);
}

static __always_inline int source_allowed(const struct packet *packet,
					  const struct frontend *frontend)
{
	return !frontend->ranges || source_in_ranges(&packet->flow, frontend->ranges);
}
