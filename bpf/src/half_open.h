/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "established_filter.h"
#include "override_table.h"
#include "maps.h"
#include "trace.h"

/* Table of half-open flows. Untrusted hosts can trigger a write with each packet, so writes must be
 * cheap: one entry for both directions, and neither the lock nor the lists of the kernel's LRU
 * hash.
 *
 * A bucket has seven slots and one cache line of marks, which is all that most lookups read. The
 * bucket is selected by the client's address and port, which packets of both directions contain. A
 * mark has 16 bits of each direction's fingerprint (override_table.h), or 0 if the direction is
 * absent; the slot has the full fingerprints. A full bucket evicts its least recently used slot.
 *
 * Each family has a table and an overflow table for VIPs over their quota. A client's two buckets
 * are adjacent, to save TLB misses.
 *
 * The table is lockless: a writer claims a slot by compare-and-swap of the mark, writes the slot,
 * then the mark.
 */

/* Shift of a direction's tag in a mark. The upper half of a mark is the time of last use. */
enum half_open_direction {
	HALF_OPEN_FORWARD = 0,
	HALF_OPEN_REVERSE = 16,
};

#define HALF_OPEN_USED 32
#define HALF_OPEN_TAG 0xffffULL
#define HALF_OPEN_TAGS 0xffffffffULL
/* Being written. No flow has these tags. */
#define HALF_OPEN_CLAIMED 0x10001ULL

/* Number of buckets of one table minus 1 (a power of two minus 1). Set by the loader. */
volatile const __u32 half_open_mask;

static __always_inline __u64 half_open_tag(__u64 fingerprint)
{
	__u64 tag = fingerprint >> 48;

	return tag > 1 ? tag : tag + 2;
}

/* IN_OVERFLOW in flags selects the overflow table. */
static __always_inline __u32 half_open_index(__u64 client, __u8 family, __u32 flags)
{
	__u32 bucket = client & half_open_mask;

	if (family != ADDRESS_FAMILY_IPV4)
		bucket += half_open_mask + 1;
	return 2 * bucket + !!(flags & IN_OVERFLOW);
}

static __always_inline __u32 half_open_overflow(__u32 index)
{
	return index + 1;
}

static __always_inline __u32 half_open_index4(__u32 client, __be16 port, __u8 protocol, __u32 flags)
{
	return half_open_index(client_fingerprint4(client, port, protocol), ADDRESS_FAMILY_IPV4,
			       flags);
}

static __always_inline __u32 half_open_index6(const __be32 *client, __be16 port, __u8 protocol,
					      __u32 flags)
{
	return half_open_index(client_fingerprint6(client, port, protocol), ADDRESS_FAMILY_IPV6,
			       flags);
}

static __always_inline __u32 half_open_place(const struct flow *flow, __u32 flags)
{
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return half_open_index4(flow->client.word[3], flow->client_port, flow->protocol,
					flags);
	return half_open_index6(flow->client.word, flow->client_port, flow->protocol, flags);
}

/* Fingerprint of the reverse direction. */
static __always_inline __u64 half_open_reverse_fingerprint(const struct flow *flow,
							   const struct endpoint *endpoint)
{
	__u32 ports = two_ports(flow->client_port, endpoint->port);

	if (flow->family == ADDRESS_FAMILY_IPV4)
		return flow_fingerprint4(flow->client.word[3], endpoint->address.word[3], ports,
					 flow->protocol);
	return flow_fingerprint6(flow->client.word, endpoint->address.word, ports, flow->protocol);
}

static __always_inline int half_open_is(__u64 mark, const struct half_open *slot, __u64 fingerprint,
					enum half_open_direction direction)
{
	if ((mark >> direction & HALF_OPEN_TAG) != half_open_tag(fingerprint))
		return 0;
	return (direction == HALF_OPEN_FORWARD ? slot->forward_fingerprint :
						 slot->reverse_fingerprint) == fingerprint;
}

static __always_inline int half_open_has(const struct half_open_bucket *bucket, int slot,
					 __u64 fingerprint, enum half_open_direction direction)
{
	return half_open_is(bucket->mark[slot], &bucket->slot[slot], fingerprint, direction);
}

_Static_assert(sizeof(((struct half_open_bucket *)0)->mark) <= sizeof(struct half_open) &&
		       sizeof(struct half_open_bucket) ==
			       (HALF_OPEN_SLOTS + 1) * sizeof(struct half_open) &&
		       !(HALF_OPEN_SLOTS & (HALF_OPEN_SLOTS + 1)),
	       "the marks take the place of one slot, and a mask bounds a place");

/* Returns 1 plus the slot that matches the fingerprint, or 0. */
static __always_inline int half_open_place_in(const struct half_open_bucket *bucket,
					      __u64 fingerprint, enum half_open_direction direction)
{
#pragma unroll
	for (int i = 0; i < HALF_OPEN_SLOTS; i++)
		if (half_open_has(bucket, i, fingerprint, direction))
			return 1 + i;
	return 0;
}

/* Global, so that the verifier checks the loop once and not per caller. */
__noinline int half_open_find_slot(const struct half_open_bucket *bucket, __u64 fingerprint,
				   int direction)
{
	if (!bucket)
		return 0;
	return half_open_place_in(bucket, fingerprint,
				  direction ? HALF_OPEN_REVERSE : HALF_OPEN_FORWARD);
}

/* Bounds a place for the verifier; the barrier keeps the compiler from removing the mask. */
static __always_inline __u32 half_open_bounded(__u32 place)
{
	asm volatile("" : "+r"(place));
	return place & HALF_OPEN_SLOTS;
}

/* place is not 0. The verifier accepts only sums of nonnegative offsets. */
static __always_inline struct half_open *half_open_at(struct half_open_bucket *bucket, __u32 place)
{
	return (struct half_open *)bucket + place;
}

static __always_inline __u64 *half_open_mark(struct half_open_bucket *bucket, __u32 place)
{
	return &bucket->mark[half_open_bounded(place - 1)];
}

static __always_inline struct half_open *half_open_find(__u32 index, __u64 fingerprint,
							enum half_open_direction direction)
{
	struct half_open_bucket *bucket = bpf_map_lookup_elem(&half_open_flows, &index);
	__u32 place =
		bucket ? half_open_bounded(half_open_find_slot(bucket, fingerprint, direction)) : 0;

	return bucket && place ? half_open_at(bucket, place) : NULL;
}

static __always_inline __u64 half_open_stamp(struct half_open_bucket *bucket)
{
	return (bucket->clock = bucket->clock + 1) << HALF_OPEN_USED;
}

enum half_open_change {
	/* Renew the time of last use. */
	HALF_OPEN_RENEW,
	/* Remove the direction. */
	HALF_OPEN_CLEAR,
};

static __always_inline void half_open_change(struct half_open_bucket *bucket, int slot,
					     enum half_open_direction direction,
					     enum half_open_change change)
{
	__u64 old = bucket->mark[slot], mark = old & ~(HALF_OPEN_TAG << direction);

	if (change == HALF_OPEN_RENEW)
		mark = (old & HALF_OPEN_TAGS) | half_open_stamp(bucket);
	if (old != HALF_OPEN_CLAIMED)
		__sync_val_compare_and_swap(&bucket->mark[slot], old, mark);
}

/* Global, so verified once, as half_open_claim. */
__noinline int half_open_update(__u32 index, __u64 fingerprint, int direction, int change)
{
	struct half_open_bucket *bucket = bpf_map_lookup_elem(&half_open_flows, &index);

	if (!bucket || tracing)
		return 0;
	direction = direction ? HALF_OPEN_REVERSE : HALF_OPEN_FORWARD;
	for (int i = 0; i < HALF_OPEN_SLOTS; i++)
		if (half_open_has(bucket, i, fingerprint, direction))
			half_open_change(bucket, i, direction, change);
	return 0;
}

/* Returns a free or the least recently used slot. */
static __always_inline __u32 half_open_victim(const struct half_open_bucket *bucket)
{
	__u32 oldest = 0, victim = 0, now = bucket->clock;

	for (int i = 0; i < HALF_OPEN_SLOTS; i++) {
		__u64 mark = bucket->mark[i];
		__u32 age = now - (__u32)(mark >> HALF_OPEN_USED);

		if (!(mark & HALF_OPEN_TAGS))
			return i;
		if (mark != HALF_OPEN_CLAIMED && age >= oldest) {
			oldest = age;
			victim = i;
		}
	}
	return victim;
}

/* Attempts to claim a slot under contention. */
#define HALF_OPEN_ATTEMPTS 4

/* Returns the claimed slot, or -1 if other CPUs claimed each slot. */
__noinline int half_open_claim(__u32 index)
{
	struct half_open_bucket *bucket = bpf_map_lookup_elem(&half_open_flows, &index);

	for (int attempt = 0; bucket && attempt < HALF_OPEN_ATTEMPTS; attempt++) {
		__u32 slot = half_open_victim(bucket);
		__u64 old;

		if (slot >= HALF_OPEN_SLOTS)
			break;
		old = bucket->mark[slot];
		if (old != HALF_OPEN_CLAIMED &&
		    __sync_val_compare_and_swap(&bucket->mark[slot], old, HALF_OPEN_CLAIMED) == old)
			return slot;
	}
	return -1;
}

/* Publishes a claimed slot. */
static __always_inline void half_open_commit(struct half_open_bucket *bucket, __u32 slot)
{
	__u64 mark = half_open_tag(bucket->slot[slot].forward_fingerprint) << HALF_OPEN_FORWARD |
		     half_open_tag(bucket->slot[slot].reverse_fingerprint) << HALF_OPEN_REVERSE;

	/* The exchange is a barrier. */
	__sync_lock_test_and_set(&bucket->mark[slot], mark | half_open_stamp(bucket));
}

/* Restores the reverse direction of a flow that is in the table. */
static __always_inline void half_open_put_reverse(__u32 index, __u64 fingerprint,
						  __u64 reverse_fingerprint,
						  const struct reverse *reverse)
{
	struct half_open_bucket *bucket = bpf_map_lookup_elem(&half_open_flows, &index);
	struct half_open *slot;
	__u64 *mark, old;
	__u32 place;

	if (!bucket || !reverse || tracing)
		return;
	place = half_open_bounded(half_open_find_slot(bucket, fingerprint, HALF_OPEN_FORWARD));
	if (!place)
		return;
	slot = half_open_at(bucket, place);
	mark = half_open_mark(bucket, place);
	old = *mark;
	if (old == HALF_OPEN_CLAIMED || !half_open_is(old, slot, fingerprint, HALF_OPEN_FORWARD))
		return;
	slot->reverse_fingerprint = reverse_fingerprint;
	slot->reverse = *reverse;
	__sync_val_compare_and_swap(mark, old,
				    (old & ~(HALF_OPEN_TAG << HALF_OPEN_REVERSE)) |
					    half_open_tag(reverse_fingerprint)
						    << HALF_OPEN_REVERSE);
}
