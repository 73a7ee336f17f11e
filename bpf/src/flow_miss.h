/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "override_table.h"
#include "maps.h"
#include "trace.h"

/* Negative cache of flow lookups: detects repeated packets, and avoids lookups of flows that no
 * node had shortly before.
 *
 * A bucket is a cache line of seven slots in FIFO order. The table never fills up: with n new
 * unknown flows per second it covers 917,504 / n seconds. A slot has 30 bits of the flow's
 * fingerprint, whose key is secret, so that slots cannot be targeted. Two flows collide once in 150
 * million packets.
 *
 * Slots are written without a lock. A lost update costs a client one packet.
 */

enum miss_state {
	/* Not seen recently. */
	MISS_NONE,
	/* One packet was seen. */
	MISS_FIRST_PACKET,
	/* A repeated packet was forwarded to other nodes. */
	MISS_LOOKUP_SENT,
	/* No other node knew the flow. */
	MISS_CONFIRMED,
};

#define MISS_STATE_MASK 3U

/* Covers a client's first five retransmissions, some 30 s if the first is sent after 1 s. */
#define FLOW_MISS_SECONDS 30

static __always_inline struct flow_miss_bucket *flow_miss_bucket(__u64 fingerprint)
{
	__u32 place = fingerprint & (FLOW_MISS_BUCKETS - 1);

	return bpf_map_lookup_elem(&flow_misses, &place);
}

/* Bits of the fingerprint that do not select the bucket. */
static __always_inline __u32 flow_miss_tag(__u64 fingerprint)
{
	return fingerprint >> 32 & ~MISS_STATE_MASK;
}

static __always_inline struct flow_miss *flow_miss_find(struct flow_miss_bucket *bucket, __u32 tag)
{
	for (int i = 0; i < FLOW_MISS_SLOTS; i++) {
		struct flow_miss *slot = &bucket->slot[i];

		if (slot->tag_state & MISS_STATE_MASK &&
		    (slot->tag_state & ~MISS_STATE_MASK) == tag &&
		    !clock_passed(slot->since, FLOW_MISS_SECONDS))
			return slot;
	}
	return NULL;
}

static __always_inline struct flow_miss *flow_miss_oldest(struct flow_miss_bucket *bucket)
{
	__u32 next = bucket->next;

	if (next >= FLOW_MISS_SLOTS)
		next = 0;
	bucket->next = next + 1;
	return &bucket->slot[next];
}

/* Returns an enum miss_state. */
__noinline int flow_miss_state(const struct flow *flow)
{
	struct flow_miss_bucket *bucket;
	struct flow_miss *found;
	__u64 fingerprint;

	if (!flow)
		return MISS_NONE;
	fingerprint = flow_fingerprint(flow);
	bucket = flow_miss_bucket(fingerprint);
	found = bucket ? flow_miss_find(bucket, flow_miss_tag(fingerprint)) : NULL;
	return found ? found->tag_state & MISS_STATE_MASK : MISS_NONE;
}

/* Sets the state and returns the previous one. */
__noinline int flow_miss_record(const struct flow *flow, int state)
{
	struct flow_miss_bucket *bucket;
	int before = MISS_NONE;
	struct flow_miss *slot;
	__u64 fingerprint;
	__u32 tag;

	if (!flow || tracing)
		return MISS_NONE;
	fingerprint = flow_fingerprint(flow);
	tag = flow_miss_tag(fingerprint);
	bucket = flow_miss_bucket(fingerprint);
	if (!bucket)
		return MISS_NONE;
	slot = flow_miss_find(bucket, tag);
	if (slot)
		before = slot->tag_state & MISS_STATE_MASK;
	else
		slot = flow_miss_oldest(bucket);
	slot->tag_state = tag | (state & MISS_STATE_MASK);
	slot->since = clock_now();
	return before;
}
