/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "established_filter.h"
#include "exception_table.h"
#include "maps.h"
#include "trace.h"

/* The table of half-open flows. Untrusted hosts can write to it with each packet, so an entry must
 * cost little: it is written once for both directions, and without the lock and the lists of the
 * kernel's LRU hash.
 *
 * A bucket has seven slots, and a line of marks in front, which is all that most lookups read.
 * The bucket is that of the client's address and port, which packets of both directions have. A
 * mark has 16 bits of each direction's print (exception_table.h); zero means that the slot does
 * not have that direction. The whole prints are in the slot. When all slots are taken, the one
 * that was longest unused is.
 *
 * The map has a table for each family, and a second one for VIPs over their quota. The buckets of a
 * client in both are beside each other: so they share a page, which is not always among those that
 * the CPU knows the place of.
 *
 * Marks change by compare-and-swap: a writer claims a slot, writes it, and then its mark. So no
 * CPU sees the slot of one flow with the content of another.
 */

/* The place of a direction's tag in a mark. Above both is the bucket's time of the last use. */
enum half_open_way {
	HALF_OPEN_ASKS = 0,
	HALF_OPEN_ANSWERS = 16,
};

#define HALF_OPEN_USED 32
#define HALF_OPEN_TAG 0xffffULL
#define HALF_OPEN_TAGS 0xffffffffULL
/* A writer has the slot. No flow has these tags. */
#define HALF_OPEN_CLAIMED 0x10001ULL

/* The number of buckets of one of the tables less one; a power of two less one. Set by the
 * loader.
 */
volatile const __u32 half_open_mask;

static __always_inline __u64 half_open_tag(__u64 print)
{
	__u64 tag = print >> 48;

	return tag > 1 ? tag : tag + 2;
}

/* flags has IN_OVERFLOW for the second table. */
static __always_inline __u32 half_open_index(__u64 client, __u8 family, __u32 flags)
{
	__u32 bucket = client & half_open_mask;

	if (family != ADDRESS_FAMILY_IPV4)
		bucket += half_open_mask + 1;
	return 2 * bucket + !!(flags & IN_OVERFLOW);
}

/* The bucket of the second table, of one in the first. */
static __always_inline __u32 half_open_overflow(__u32 index)
{
	return index + 1;
}

static __always_inline __u32 half_open_index4(__u32 client, __be16 port, __u8 protocol, __u32 flags)
{
	return half_open_index(client_print4(client, port, protocol), ADDRESS_FAMILY_IPV4, flags);
}

static __always_inline __u32 half_open_index6(const __be32 *client, __be16 port, __u8 protocol,
					      __u32 flags)
{
	return half_open_index(client_print6(client, port, protocol), ADDRESS_FAMILY_IPV6, flags);
}

static __always_inline __u32 half_open_place(const struct flow *flow, __u32 flags)
{
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return half_open_index4(flow->client.word[3], flow->client_port, flow->protocol,
					flags);
	return half_open_index6(flow->client.word, flow->client_port, flow->protocol, flags);
}

/* The print of the endpoint's packets. */
static __always_inline __u64 half_open_answers(const struct flow *flow,
					       const struct endpoint *endpoint)
{
	__u32 ports = two_ports(flow->client_port, endpoint->port);

	if (flow->family == ADDRESS_FAMILY_IPV4)
		return exception_print4(flow->client.word[3], endpoint->address.word[3], ports,
					flow->protocol);
	return exception_print6(flow->client.word, endpoint->address.word, ports, flow->protocol);
}

static __always_inline int half_open_is(__u64 mark, const struct half_open *slot, __u64 print,
					enum half_open_way way)
{
	if ((mark >> way & HALF_OPEN_TAG) != half_open_tag(print))
		return 0;
	return (way == HALF_OPEN_ASKS ? slot->asks : slot->answers) == print;
}

static __always_inline int half_open_has(const struct half_open_bucket *bucket, int slot,
					 __u64 print, enum half_open_way way)
{
	return half_open_is(bucket->mark[slot], &bucket->slot[slot], print, way);
}

_Static_assert(sizeof(((struct half_open_bucket *)0)->mark) <= sizeof(struct half_open) &&
		       sizeof(struct half_open_bucket) ==
			       (HALF_OPEN_SLOTS + 1) * sizeof(struct half_open) &&
		       !(HALF_OPEN_SLOTS & (HALF_OPEN_SLOTS + 1)),
	       "the marks take the place of one slot, and a mask bounds a place");

/* The place of the slot that has the print in its bucket, where the marks are 0: zero means none. */
static __always_inline int half_open_place_in(const struct half_open_bucket *bucket, __u64 print,
					      enum half_open_way way)
{
#pragma unroll
	for (int i = 0; i < HALF_OPEN_SLOTS; i++)
		if (half_open_has(bucket, i, print, way))
			return 1 + i;
	return 0;
}

/* Verified on its own: else the verifier would follow all slots again for each caller. */
__noinline int half_open_seek(const struct half_open_bucket *bucket, __u64 print, int way)
{
	if (!bucket)
		return 0;
	return half_open_place_in(bucket, print, way ? HALF_OPEN_ANSWERS : HALF_OPEN_ASKS);
}

/* What the verifier needs to see of a place. Without the first line the compiler, which knows more,
 * would leave it out.
 */
static __always_inline __u32 half_open_bounded(__u32 place)
{
	asm volatile("" : "+r"(place));
	return place & HALF_OPEN_SLOTS;
}

/* The slot at a place that is not zero. Its address is the sum of two numbers that are not
 * negative: others the verifier refuses.
 */
static __always_inline struct half_open *half_open_at(struct half_open_bucket *bucket, __u32 place)
{
	return (struct half_open *)bucket + place;
}

static __always_inline __u64 *half_open_mark(struct half_open_bucket *bucket, __u32 place)
{
	return &bucket->mark[half_open_bounded(place - 1)];
}

static __always_inline struct half_open *half_open_find(__u32 index, __u64 print,
							enum half_open_way way)
{
	struct half_open_bucket *bucket = bpf_map_lookup_elem(&half_open_flows, &index);
	__u32 place = bucket ? half_open_bounded(half_open_seek(bucket, print, way)) : 0;

	return bucket && place ? half_open_at(bucket, place) : NULL;
}

/* The stamp of a use, at its place in a mark. */
static __always_inline __u64 half_open_stamp(struct half_open_bucket *bucket)
{
	return (bucket->clock = bucket->clock + 1) << HALF_OPEN_USED;
}

/* What becomes of the mark of the slot that has the print. */
enum half_open_change {
	/* It was used now. */
	HALF_OPEN_RENEW,
	/* It no longer has this direction. */
	HALF_OPEN_CLEAR,
};

static __always_inline void half_open_change(struct half_open_bucket *bucket, int slot,
					     enum half_open_way way, enum half_open_change change)
{
	__u64 old = bucket->mark[slot], mark = old & ~(HALF_OPEN_TAG << way);

	if (change == HALF_OPEN_RENEW)
		mark = (old & HALF_OPEN_TAGS) | half_open_stamp(bucket);
	if (old != HALF_OPEN_CLAIMED)
		__sync_val_compare_and_swap(&bucket->mark[slot], old, mark);
}

/* Verified on its own, like half_open_claim. */
__noinline int half_open_update(__u32 index, __u64 print, int way, int change)
{
	struct half_open_bucket *bucket = bpf_map_lookup_elem(&half_open_flows, &index);

	if (!bucket || tracing)
		return 0;
	way = way ? HALF_OPEN_ANSWERS : HALF_OPEN_ASKS;
	for (int i = 0; i < HALF_OPEN_SLOTS; i++)
		if (half_open_has(bucket, i, print, way))
			half_open_change(bucket, i, way, change);
	return 0;
}

/* The slot that is free, or was longest unused. */
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

/* How often slots are tried for that other CPUs want, too. */
#define HALF_OPEN_ATTEMPTS 4

/* Claims a slot for a flow; the number of the slot, or -1 where other CPUs took each. */
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

/* Lets the flow of a claimed slot be found, which is written. */
static __always_inline void half_open_commit(struct half_open_bucket *bucket, __u32 slot)
{
	__u64 mark = half_open_tag(bucket->slot[slot].asks) << HALF_OPEN_ASKS |
		     half_open_tag(bucket->slot[slot].answers) << HALF_OPEN_ANSWERS;

	/* An exchange is a barrier, too. */
	__sync_lock_test_and_set(&bucket->mark[slot], mark | half_open_stamp(bucket));
}

/* Gives a flow its answers again, if the table has the flow. */
static __always_inline void half_open_answer(__u32 index, __u64 asks, __u64 answers,
					     const struct reverse *reverse)
{
	struct half_open_bucket *bucket = bpf_map_lookup_elem(&half_open_flows, &index);
	struct half_open *slot;
	__u64 *mark, old;
	__u32 place;

	if (!bucket || !reverse || tracing)
		return;
	place = half_open_bounded(half_open_seek(bucket, asks, HALF_OPEN_ASKS));
	if (!place)
		return;
	slot = half_open_at(bucket, place);
	mark = half_open_mark(bucket, place);
	old = *mark;
	if (old == HALF_OPEN_CLAIMED || !half_open_is(old, slot, asks, HALF_OPEN_ASKS))
		return;
	slot->answers = answers;
	slot->reverse = *reverse;
	__sync_val_compare_and_swap(mark, old,
				    (old & ~(HALF_OPEN_TAG << HALF_OPEN_ANSWERS)) |
					    half_open_tag(answers) << HALF_OPEN_ANSWERS);
}
