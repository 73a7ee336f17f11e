/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "exception_table.h"
#include "maps.h"
#include "trace.h"

/* Recently unknown flows: detects repeated packets, and avoids lookups of flows that no node knew
 * shortly before.
 *
 * A bucket is a cache line of seven slots in FIFO order. The table never fills up: with n new
 * unknown flows per second it covers 917,504 / n seconds. A slot has 30 bits of the flow's
 * fingerprint, whose key is secret, so that slots cannot be targeted. Two flows collide once in 150
 * million packets.
 *
 * Slots are written without a lock. A lost update costs a client one packet.
 */

enum unknown_state {
	/* Not seen recently. */
	UNKNOWN_NEW,
	/* One packet was seen. */
	UNKNOWN_SEEN,
	/* A repeated packet was forwarded to other nodes. */
	UNKNOWN_ASKED,
	/* No other node knew the flow. */
	UNKNOWN_TO_ALL,
};

#define UNKNOWN_STATE 3U

/* Covers a client's first five retransmissions, some 30 s if the first is sent after 1 s. */
#define UNKNOWN_FLOW_SECONDS 30

static __always_inline struct unknown_flow_bucket *unknown_flow_bucket(__u64 print)
{
	__u32 place = print & (UNKNOWN_FLOW_BUCKETS - 1);

	return bpf_map_lookup_elem(&unknown_flows, &place);
}

/* Bits of the fingerprint that do not select the bucket. */
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

static __always_inline struct unknown_flow *unknown_flow_oldest(struct unknown_flow_bucket *bucket)
{
	__u32 next = bucket->next;

	if (next >= UNKNOWN_FLOW_SLOTS)
		next = 0;
	bucket->next = next + 1;
	return &bucket->slot[next];
}

/* Returns an enum unknown_state. */
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

/* Sets the state and returns the previous one. */
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
