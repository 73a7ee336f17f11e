/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "clock.h"
#include "hash.h"
#include "maps.h"
#include "path.h"
#include "trace.h"
#include "unknown_flow.h"

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
volatile const __u32 unknown_per_vip = 16384;

/* Failed lookups per second, CPU and protocol. */
volatile const __u32 unknown_per_cpu = 4 * 16384;

/* Weight of a packet that was also forwarded to other zones. */
#define ZONES_WEIGHT 3

/* Weight of a TCP packet, set by the loader. */
volatile const __u32 unknown_tcp_weight = 8;

/* Of first packets above the limit, one in this many, by the packets that a lookup costs. */
#define YOUNG_SHARE 6
#define OLD_SHARE 64
#define ZONE_SHARE 32

static __always_inline __u64 unknown_vip_sum(const struct flow *flow)
{
	return hash_add(hash_vip(flow->vip.word), flow->protocol, &protocol_multiplier);
}

static __always_inline __u32 unknown_vip_slot(const struct flow *flow)
{
	return hash_slot(unknown_vip_sum(flow), UNKNOWN_VIPS);
}

/* A source is an IPv4 /24 or an IPv6 /64, per VIP. */
static __always_inline __u32 unknown_source_slot(const struct flow *flow)
{
	__u64 sum = unknown_vip_sum(flow) + hash_source(flow, bpf_htonl(0xffffff00));

	return UNKNOWN_VIPS + hash_slot(sum, UNKNOWN_SOURCES);
}

static __always_inline int is_below(const struct unknown *unknown, __u32 limit)
{
	return unknown && (unknown->count < limit || clock_passed(unknown->since, 1));
}

enum unknown_class {
	UNKNOWN_FIRST,
	UNKNOWN_REPEAT,
};

/* The classes share maps, because a program can use at most 64. */
static __always_inline struct unknown *unknown_at(enum unknown_class class, __u32 slot)
{
	if (class == UNKNOWN_REPEAT)
		slot += UNKNOWN_SLOTS;
	return bpf_map_lookup_elem(&unknowns, &slot);
}

static __always_inline struct unknown *unknown_of_cpu(enum unknown_class class,
						      const struct flow *flow)
{
	__u32 slot = 2 * (class == UNKNOWN_REPEAT) + (flow->protocol == IPPROTO_TCP);

	return bpf_map_lookup_elem(&cpu_unknowns, &slot);
}

static __always_inline int is_within_limit(enum unknown_class class, const struct flow *flow)
{
	return is_below(unknown_at(class, unknown_vip_slot(flow)), unknown_per_vip) &&
	       is_below(unknown_at(class, unknown_source_slot(flow)), unknown_per_vip / 2) &&
	       is_below(unknown_of_cpu(class, flow), unknown_per_cpu);
}

/* share applies above the limit; is_first: no other node was asked. */
__noinline int may_ask(const struct flow *flow, __u32 share, int is_first)
{
	int state;

	if (!flow || !share)
		return 0;
	if (is_within_limit(UNKNOWN_FIRST, flow))
		return 1;
	state = unknown_flow_state(flow);
	if (state == UNKNOWN_TO_ALL)
		return 0;
	if ((state == UNKNOWN_ASKED || (state == UNKNOWN_SEEN && is_first)) &&
	    is_within_limit(UNKNOWN_REPEAT, flow)) {
		unknown_flow_note(flow, UNKNOWN_ASKED);
		return 1;
	}
	if (is_first)
		unknown_flow_note(flow, UNKNOWN_SEEN);
	return bpf_get_prandom_u32() % share == 0;
}

/* Saturates at the limit, to avoid cache line contention in a flood. */
static __always_inline void unknown_count(struct unknown *unknown, __u32 limit, __u32 weight)
{
	if (!unknown || tracing)
		return;
	if (clock_passed(unknown->since, 1)) {
		unknown->since = clock_now();
		unknown->count = 0;
	}
	if (unknown->count < limit)
		__sync_fetch_and_add(&unknown->count, weight);
}

/* Records a failed lookup; zones: also in other zones. */
__noinline int note_unknown(const struct flow *flow, int zones)
{
	enum unknown_class class = UNKNOWN_FIRST;
	__u32 weight = zones ? ZONES_WEIGHT : 1;
	__u32 slot;

	if (!flow)
		return 0;
	if (unknown_flow_note(flow, UNKNOWN_TO_ALL) == UNKNOWN_ASKED)
		class = UNKNOWN_REPEAT;
	if (flow->protocol == IPPROTO_TCP)
		weight *= unknown_tcp_weight;
	slot = unknown_vip_slot(flow);
	unknown_count(unknown_at(class, slot), unknown_per_vip, weight);
	slot = unknown_source_slot(flow);
	unknown_count(unknown_at(class, slot), unknown_per_vip / 2, weight);
	unknown_count(unknown_of_cpu(class, flow), unknown_per_cpu, weight);
	return 0;
}
