/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "clock.h"
#include "hash.h"
#include "maps.h"
#include "path.h"
#include "trace.h"
#include "flow_miss.h"

/* Rate limit of lookup forwarding: packets of unknown flows, e.g. from untrusted hosts, are
 * forwarded to several nodes in vain. Flows that are found are not limited.
 *
 * The primary counts packets that return unknown, by VIP, source and CPU. Above a limit per second,
 * only repeated packets of a flow are forwarded, unless no node knew it shortly before: clients of
 * flows that moved retransmit. A second limit applies to repeated packets. A random share of the
 * others is still forwarded.
 *
 * Slots are selected by a keyed hash, so that floods use no memory.
 */

/* Failed lookups per second, VIP and protocol, above a resolver's rate; half per source. */
volatile const __u32 misses_per_vip = 16384;

/* Failed lookups per second, CPU and protocol. */
volatile const __u32 misses_per_cpu = 4 * 16384;

/* Weight of a packet that was also forwarded to other zones. */
#define ZONES_WEIGHT 3

/* Weight of a TCP packet, set by the loader. */
volatile const __u32 miss_tcp_weight = 8;

/* Of first packets above the limit, one in this many, by the packets that a lookup costs. */
#define RECENT_SHARE 6
#define OLD_SHARE 64
#define ZONE_SHARE 32

static __always_inline __u64 miss_vip_sum(const struct flow *flow)
{
	return hash_add(hash_vip(flow->vip.word), flow->protocol, &protocol_multiplier);
}

static __always_inline __u32 miss_vip_slot(const struct flow *flow)
{
	return hash_slot(miss_vip_sum(flow), MISS_VIPS);
}

/* A source is an IPv4 /24 or an IPv6 /64, per VIP. */
static __always_inline __u32 miss_source_slot(const struct flow *flow)
{
	__u64 sum = miss_vip_sum(flow) + hash_source(flow, bpf_htonl(0xffffff00));

	return MISS_VIPS + hash_slot(sum, MISS_SOURCES);
}

static __always_inline int is_below(const struct miss_rate *miss_rate, __u32 limit)
{
	return miss_rate && (miss_rate->count < limit || clock_passed(miss_rate->since, 1));
}

enum miss_class {
	MISS_FIRST,
	MISS_REPEAT,
};

/* The classes share maps, because a program can use at most 64. */
static __always_inline struct miss_rate *miss_rate_at(enum miss_class class, __u32 slot)
{
	if (class == MISS_REPEAT)
		slot += MISS_SLOTS;
	return bpf_map_lookup_elem(&miss_rates, &slot);
}

static __always_inline struct miss_rate *miss_rate_of_cpu(enum miss_class class,
							  const struct flow *flow)
{
	__u32 slot = 2 * (class == MISS_REPEAT) + (flow->protocol == IPPROTO_TCP);

	return bpf_map_lookup_elem(&cpu_miss_rates, &slot);
}

static __always_inline int is_within_limit(enum miss_class class, const struct flow *flow)
{
	return is_below(miss_rate_at(class, miss_vip_slot(flow)), misses_per_vip) &&
	       is_below(miss_rate_at(class, miss_source_slot(flow)), misses_per_vip / 2) &&
	       is_below(miss_rate_of_cpu(class, flow), misses_per_cpu);
}

/* share applies above the limit; is_first: no other node was queried. */
__noinline int lookup_allowed(const struct flow *flow, __u32 share, int is_first)
{
	int state;

	if (!flow || !share)
		return 0;
	if (is_within_limit(MISS_FIRST, flow))
		return 1;
	state = flow_miss_state(flow);
	if (state == MISS_CONFIRMED)
		return 0;
	if ((state == MISS_LOOKUP_SENT || (state == MISS_FIRST_PACKET && is_first)) &&
	    is_within_limit(MISS_REPEAT, flow)) {
		flow_miss_record(flow, MISS_LOOKUP_SENT);
		return 1;
	}
	if (is_first)
		flow_miss_record(flow, MISS_FIRST_PACKET);
	return bpf_get_prandom_u32() % share == 0;
}

/* Saturates at the limit, to avoid cache line contention in a flood. */
static __always_inline void miss_count(struct miss_rate *miss_rate, __u32 limit, __u32 weight)
{
	if (!miss_rate || tracing)
		return;
	if (clock_passed(miss_rate->since, 1)) {
		miss_rate->since = clock_now();
		miss_rate->count = 0;
	}
	if (miss_rate->count < limit)
		__sync_fetch_and_add(&miss_rate->count, weight);
}

/* Records a failed lookup; zones: also in other zones. */
__noinline int record_miss(const struct flow *flow, int zones)
{
	enum miss_class class = MISS_FIRST;
	__u32 weight = zones ? ZONES_WEIGHT : 1;
	__u32 slot;

	if (!flow)
		return 0;
	if (flow_miss_record(flow, MISS_CONFIRMED) == MISS_LOOKUP_SENT)
		class = MISS_REPEAT;
	if (flow->protocol == IPPROTO_TCP)
		weight *= miss_tcp_weight;
	slot = miss_vip_slot(flow);
	miss_count(miss_rate_at(class, slot), misses_per_vip, weight);
	slot = miss_source_slot(flow);
	miss_count(miss_rate_at(class, slot), misses_per_vip / 2, weight);
	miss_count(miss_rate_of_cpu(class, flow), misses_per_cpu, weight);
	return 0;
}
