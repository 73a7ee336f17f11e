/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "flow_timeout.h"
#include "frontend.h"
#include "hash.h"
#include "maps.h"
#include "path.h"
#include "trace.h"

/* Table of exceptions: buckets of eight 16-byte slots with a Bloom filter in front. A slot contains
 * a 64-bit fingerprint (print) of the flow. The filter has a 64-bit word for four buckets and two
 * bits per exception; sweeps (exception_sweep.h) rebuild it.
 *
 * A flow has two buckets. The second is used if the first is full. Slots are filled from the
 * lowest, and the last slot is never free again once used, so the second bucket is searched only if
 * the last slot of the first is not free. If both are full, the least recently used slot of the
 * first is evicted.
 *
 * The fingerprint is NH (Black et al., "UMAC: Fast and Secure Message Authentication", 1999) with a
 * finalizer. Its key is secret per node, because otherwise clients could evict another's exception
 * by collision. The probability of a collision is 2^-64, and 2^-32 for flows chosen without the
 * key.
 *
 * The table is lockless: a writer claims a slot by compare-and-swap, writes the value, then the
 * fingerprint, so readers never combine one flow with another's node.
 */
#define EXCEPTION_FREE 0
/* Being written. */
#define EXCEPTION_CLAIMED 1
/* A last slot whose exception was deleted. */
#define EXCEPTION_GONE 2
#define EXCEPTION_LAST (EXCEPTION_SLOTS - 1)

/* Fields of a value: row, lower node bits, datagram flag, upper node bits, time of last use. */
#define EXCEPTION_ROW 36
#define EXCEPTION_NODE 24
#define EXCEPTION_DATAGRAMS (1ULL << 23)
#define EXCEPTION_NODE_HIGH 21
#define EXCEPTION_SEEN ((1ULL << EXCEPTION_NODE_HIGH) - 1)
#define EXCEPTION_OF_ROW ((1ULL << EXCEPTION_ROW) - 1)
/* log2 of ticks per time unit, which wraps after 6 days at 1000 Hz. */
#define EXCEPTION_TICKS 8

/* Number of buckets minus 1 (a power of two minus 1). Set by the loader. */
volatile const __u32 exception_mask;

static __always_inline __u64 exception_print_of(__u64 sum)
{
	__u64 print = hash_final(sum);

	return print > EXCEPTION_GONE ? print : print + EXCEPTION_GONE + 1;
}

/* Words and ports in network byte order; the lower half of ports is the client's. */

static __always_inline __u64 exception_print4(__u32 client, __u32 vip, __u32 ports, __u8 protocol)
{
	__u32 zero = 0;
	const struct exception_secret *secret = bpf_map_lookup_elem(&exception_key, &zero);

	if (!secret)
		return EXCEPTION_FREE;
	return exception_print_of((client + secret->word[0]) * (vip + secret->word[1]) +
				  (ports + secret->word[2]) * (protocol + secret->word[3]));
}

static __always_inline __u64 exception_print6(const __be32 *client, const __be32 *vip, __u32 ports,
					      __u8 protocol)
{
	__u32 zero = 0;
	const struct exception_secret *secret = bpf_map_lookup_elem(&exception_key, &zero);
	const __u64 *key;

	if (!secret)
		return EXCEPTION_FREE;
	key = secret->word;
	return exception_print_of((client[0] + key[4]) * (client[1] + key[5]) +
				  (client[2] + key[6]) * (client[3] + key[7]) +
				  (vip[0] + key[8]) * (vip[1] + key[9]) +
				  (vip[2] + key[10]) * (vip[3] + key[11]) +
				  (ports + key[2]) * (protocol + key[3]));
}

static __always_inline __u64 exception_print(const struct flow *flow)
{
	__u32 ports = two_ports(flow->client_port, flow->vip_port);

	if (flow->family == ADDRESS_FAMILY_IPV4)
		return exception_print4(flow->client.word[3], flow->vip.word[3], ports,
					flow->protocol);
	return exception_print6(flow->client.word, flow->vip.word, ports, flow->protocol);
}

static __always_inline struct exception_bucket *exception_first(__u64 print)
{
	__u32 place = print & exception_mask;

	return bpf_map_lookup_elem(&exceptions, &place);
}

static __always_inline struct exception_bucket *exception_second(__u64 print)
{
	__u32 place = print >> 32 & exception_mask;

	return bpf_map_lookup_elem(&exceptions, &place);
}

static __always_inline __u64 *exception_in(struct exception_bucket *bucket, __u64 print)
{
#pragma unroll
	for (int i = 0; i < EXCEPTION_SLOTS; i++) {
		if (bucket->slot[i].print == print)
			return &bucket->slot[i].about;
	}
	return NULL;
}

static __always_inline __u64 *exception_filter_word(__u64 print)
{
	__u32 word = (print & exception_mask) / EXCEPTION_FILTERED;

	return bpf_map_lookup_elem(&exception_filter, &word);
}

static __always_inline __u64 exception_filter_bits(__u64 print)
{
	return 1ULL << (print >> 58) | 1ULL << (print >> 52 & 63);
}

static __always_inline __u64 *exception_find(__u64 print)
{
	__u64 bits = exception_filter_bits(print), *word = exception_filter_word(print), *found;
	struct exception_bucket *bucket;

	if (!word || (*word & bits) != bits || print <= EXCEPTION_GONE)
		return NULL;
	bucket = exception_first(print);
	if (!bucket)
		return NULL;
	found = exception_in(bucket, print);
	if (found || bucket->slot[EXCEPTION_LAST].print == EXCEPTION_FREE)
		return found;
	bucket = exception_second(print);
	return bucket ? exception_in(bucket, print) : NULL;
}

static __always_inline __u64 exception_now(void)
{
	return bpf_jiffies64() >> EXCEPTION_TICKS & EXCEPTION_SEEN;
}

static __always_inline __u64 exception_about(__u32 row, __u32 node, __u8 protocol)
{
	return (__u64)row << EXCEPTION_ROW | (node & NODE_ID_LOW) << EXCEPTION_NODE |
	       (__u64)(node >> NODE_ID_LOW_BITS) << EXCEPTION_NODE_HIGH | exception_now() |
	       (protocol == IPPROTO_TCP ? 0 : EXCEPTION_DATAGRAMS);
}

static __always_inline __u32 exception_node(__u64 about)
{
	return (about >> EXCEPTION_NODE & NODE_ID_LOW) |
	       (about >> EXCEPTION_NODE_HIGH & NODE_ID_HIGH) << NODE_ID_LOW_BITS;
}

static __always_inline int exception_unused_for(__u64 about, __u32 seconds)
{
	__u64 units = (exception_now() - about) & EXCEPTION_SEEN;

	return units >= (__u64)seconds * ticks_per_second >> EXCEPTION_TICKS;
}

static __always_inline int exception_expired(__u64 about)
{
	return exception_unused_for(about,
				    idle_seconds(about & EXCEPTION_DATAGRAMS ? FLOW_DATAGRAMS :
									       FLOW_ESTABLISHED));
}

/* Renews the time and the row, whose table may have moved. The slot may have been reused. */
static __always_inline void exception_renew(__u64 *slot, __u64 about, __u32 row)
{
	__u64 renewed = (about & EXCEPTION_OF_ROW & ~EXCEPTION_SEEN) | (__u64)row << EXCEPTION_ROW |
			exception_now();

	if (!tracing &&
	    (about >> EXCEPTION_ROW != row || exception_unused_for(about, REFRESH_SECONDS)))
		__sync_val_compare_and_swap(slot, about, renewed);
}

static __always_inline void exception_clear(struct exception_bucket *bucket, int slot, __u64 print)
{
	__sync_val_compare_and_swap(&bucket->slot[slot].print, print,
				    slot == EXCEPTION_LAST ? EXCEPTION_GONE : EXCEPTION_FREE);
}

/* Global, so verified once, as exception_put. */
__noinline int exception_forget(__u64 print)
{
	if (print <= EXCEPTION_GONE || tracing)
		return 0;
	for (int i = 0; i < 2; i++) {
		struct exception_bucket *bucket =
			i ? exception_second(print) : exception_first(print);

		/* Two CPUs may have added it concurrently. */
		for (int slot = 0; bucket && slot < EXCEPTION_SLOTS; slot++)
			if (bucket->slot[slot].print == print)
				exception_clear(bucket, slot, print);
	}
	return 0;
}

static __always_inline __u32 exception_free_slot(const struct exception_bucket *bucket)
{
	__u32 slot = 0;

	for (; slot < EXCEPTION_SLOTS; slot++)
		if (bucket->slot[slot].print == EXCEPTION_FREE ||
		    bucket->slot[slot].print == EXCEPTION_GONE)
			break;
	return slot;
}

/* Returns the least recently used slot of a full bucket. */
static __always_inline __u32 exception_victim(const struct exception_bucket *bucket)
{
	__u64 oldest = 0, now = exception_now();
	__u32 victim = 0;

	for (int i = 0; i < EXCEPTION_SLOTS; i++) {
		__u64 age = (now - bucket->slot[i].about) & EXCEPTION_SEEN;

		if (bucket->slot[i].print != EXCEPTION_CLAIMED && age >= oldest) {
			oldest = age;
			victim = i;
		}
	}
	return victim;
}

/* Returns 0, or -1 if another CPU is writing the slot. */
static __always_inline int exception_fill(struct exception_bucket *bucket, __u32 slot, __u64 print,
					  __u64 about)
{
	__u64 old, *word = exception_filter_word(print);

	slot &= EXCEPTION_SLOTS - 1;
	old = bucket->slot[slot].print;
	if (!word || old == EXCEPTION_CLAIMED ||
	    __sync_val_compare_and_swap(&bucket->slot[slot].print, old, EXCEPTION_CLAIMED) != old)
		return -1;
	bucket->slot[slot].about = about;
	/* The exchange is a barrier: a sweep that misses the bits sees the fingerprint. */
	__sync_lock_test_and_set(&bucket->slot[slot].print, print);
	__sync_fetch_and_or(word, exception_filter_bits(print));
	return 0;
}

/* Attempts to claim a slot under contention. */
#define EXCEPTION_ATTEMPTS 4

/* Returns 0, or -1 if other CPUs claimed each slot. */
__noinline int exception_put(__u64 print, __u64 about)
{
	struct exception_bucket *first = exception_first(print);
	struct exception_bucket *second = exception_second(print);
	__u64 *found = exception_find(print);

	if (!first || !second || print <= EXCEPTION_GONE || tracing)
		return -1;
	if (found) {
		*found = about;
		return 0;
	}
	for (int attempt = 0; attempt < EXCEPTION_ATTEMPTS; attempt++) {
		struct exception_bucket *bucket = first;
		__u32 slot = exception_free_slot(bucket);

		if (slot == EXCEPTION_SLOTS) {
			bucket = second;
			slot = exception_free_slot(bucket);
		}
		if (slot == EXCEPTION_SLOTS) {
			bucket = first;
			slot = exception_victim(bucket);
		}
		if (!exception_fill(bucket, slot, print, about))
			return 0;
	}
	return -1;
}
