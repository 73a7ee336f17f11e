/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "exception_table.h"
#include "maps.h"
#include "trace.h"

/* Flows that were unknown here lately, to tell a packet that is repeated from an untrusted host's
 * first one, and not to ask for a flow again that no node knew a moment ago.
 *
 * A bucket is a cache line of seven slots, written in turn: when they are taken, a new flow takes
 * that of the oldest. So the table is never full. A flood only makes it forget sooner: with n new
 * flows in a second it remembers the last 917,504 / n seconds. A slot has 30 bits of the flow's
 * print, whose secret is this node's: nobody can aim at the slot of another flow. Two flows are
 * taken for one another once in 150 million packets.
 *
 * CPUs write slots without a lock. A state that is lost by that costs a client one packet more.
 */

enum unknown_state {
	/* It was not seen lately. */
	UNKNOWN_NEW,
	/* One packet of it was seen. */
	UNKNOWN_SEEN,
	/* A packet was repeated, and others were asked for it. */
	UNKNOWN_ASKED,
	/* No other node knew it. */
	UNKNOWN_TO_ALL,
};

#define UNKNOWN_STATE 3U

/* How long a flow is remembered. A client's retransmissions come at most so far apart while its
 * user still waits: the first five span some 30 s, where the first comes after a second.
 */
#define UNKNOWN_FLOW_SECONDS 30

static __always_inline struct unknown_flow_bucket *unknown_flow_bucket(__u64 print)
{
	__u32 place = print & (UNKNOWN_FLOW_BUCKETS - 1);

	return bpf_map_lookup_elem(&unknown_flows, &place);
}

/* The bits of the print that a slot has: not those that found the bucket. */
static __always_inline __u32 unknown_flow_tag(__u64 print)
{
	return print >> 32 & ~UNKNOWN_STATE;
}

static __always_inline struct unknown_flow *unknown_flow_find(struct unknown_flow_bucket *bucket,
							      __u32 tag)
{
	for (int i = 0; i < UNKNOWN_FLOW_SLOTS; i++) {
		struct unknown_flow *slot = &bucket->slot[i];

		if (slot->about & UNKNOWN_STATE && (slot->about & ~UNKNOWN_STATE) == tag &&
		    !clock_passed(slot->since, UNKNOWN_FLOW_SECONDS))
			return slot;
	}
	return NULL;
}

/* The slot for a new flow. */
static __always_inline struct unknown_flow *unknown_flow_oldest(struct unknown_flow_bucket *bucket)
{
	__u32 next = bucket->next;

	if (next >= UNKNOWN_FLOW_SLOTS)
		next = 0;
	bucket->next = next + 1;
	return &bucket->slot[next];
}

/* What is remembered of the flow: enum unknown_state. */
__noinline int unknown_flow_state(const struct flow *flow)
{
	struct unknown_flow_bucket *bucket;
	struct unknown_flow *found;
	__u64 print;

	if (!flow)
		return UNKNOWN_NEW;
	print = exception_print(flow);
	bucket = unknown_flow_bucket(print);
	found = bucket ? unknown_flow_find(bucket, unknown_flow_tag(print)) : NULL;
	return found ? found->about & UNKNOWN_STATE : UNKNOWN_NEW;
}

/* Remembers the state of the flow, and returns the one before. */
__noinline int unknown_flow_note(const struct flow *flow, int state)
{
	struct unknown_flow_bucket *bucket;
	int before = UNKNOWN_NEW;
	struct unknown_flow *slot;
	__u64 print;
	__u32 tag;

	if (!flow || tracing)
		return UNKNOWN_NEW;
	print = exception_print(flow);
	tag = unknown_flow_tag(print);
	bucket = unknown_flow_bucket(print);
	if (!bucket)
		return UNKNOWN_NEW;
	slot = unknown_flow_find(bucket, tag);
	if (slot)
		before = slot->about & UNKNOWN_STATE;
	else
		slot = unknown_flow_oldest(bucket);
	slot->about = tag | (state & UNKNOWN_STATE);
	slot->since = clock_now();
	return before;
}
