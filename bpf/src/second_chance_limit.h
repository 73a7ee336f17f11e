/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "clock.h"
#include "hash.h"
#include "maps.h"
#include "path.h"
#include "trace.h"
#include "unknown_flow.h"

/* How often other nodes are asked for a flow. Untrusted hosts send packets of flows that no node
 * knows, and each would be sent to several nodes in vain. Only those count: flows that are found
 * cost the limit nothing, however many they are.
 *
 * The primary counts, by VIP, by source and by CPU, the packets that come back to it unknown.
 * Beyond a limit, in a second, others are asked for a flow whose packet is repeated, but not for
 * one that was unknown to all a moment ago. A client of a flow that moved repeats its packet. An
 * untrusted host who sends each packet twice comes up against a second limit, of repeats alone. Of
 * all else a share is still asked for.
 *
 * Slots are shared by a keyed hash, so a flood of sources takes no memory.
 */

/* Packets of flows that other nodes were asked for in vain, of one VIP in a second and for each
 * protocol. New flows of UDP are such packets while their row is young, so it is far more than a
 * resolver's clients begin; and little beside what a flood must bring to hurt. A source has half
 * of it.
 */
volatile const __u32 unknown_per_vip = 16384;

/* The same of all VIPs, for each CPU and protocol: floods of many VIPs at once cost no more. */
volatile const __u32 unknown_per_cpu = 4 * 16384;

/* How many packets one counts for that other zones were asked for, too: so many more it costs. */
#define ZONES_WEIGHT 3

/* How many packets one of TCP counts for, set by the loader. A packet in the midst of a
 * connection that no node knows is an untrusted host's, or its connection died.
 */
volatile const __u32 unknown_tcp_weight = 8;

/* One first packet in so many is asked for beyond the limit, by what asking costs: up to
 * CHAIN_LENGTH + 1 more packets, in each zone that is asked. So a packet costs less than two.
 */
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

/* A source is a /24 of IPv4 or a /64 of IPv6, at a VIP. */
static __always_inline __u32 unknown_source_slot(const struct flow *flow)
{
	__u64 sum = unknown_vip_sum(flow) + hash_source(flow, bpf_htonl(0xffffff00));

	return UNKNOWN_VIPS + hash_slot(sum, UNKNOWN_SOURCES);
}

static __always_inline int is_below(const struct unknown *unknown, __u32 limit)
{
	return unknown && (unknown->count < limit || clock_passed(unknown->since, 1));
}

/* Which limit a packet counts for. */
enum unknown_class {
	UNKNOWN_FIRST,
	UNKNOWN_REPEAT,
};

/* Both classes share maps: a program has 64 at most. */
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

/* Reports whether other nodes may be asked for the flow. share is for a first packet beyond the
 * limit. is_first says that none was asked for this packet yet.
 */
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

/* Counts no further than the limit, so that CPUs do not contend in a flood. */
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

/* Notes that other nodes were asked in vain, also in other zones. */
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
