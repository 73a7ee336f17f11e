/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "flow_timeout.h"
#include "frontend.h"
#include "hash.h"
#include "maps.h"
#include "path.h"
#include "trace.h"

/* Table of overrides: buckets of eight 16-byte slots with a Bloom filter in front. A slot contains
 * a 64-bit fingerprint of the flow. The filter has a 64-bit word for four buckets and
 * two bits per override; sweeps (override_sweep.h) rebuild it.
 *
 * A flow has two buckets. The second is used if the first is full. Slots are filled from the
 * lowest, and the last slot is never free again once used, so the second bucket is searched only if
 * the last slot of the first is not free. If both are full, the least recently used slot of the
 * first is evicted.
 *
 * The fingerprint is NH (Black et al., "UMAC: Fast and Secure Message Authentication", 1999) with a
 * finalizer. Its key is secret per node, because otherwise clients could evict another's override
 * by collision. The probability of a collision is 2^-64, and 2^-32 for flows chosen without the
 * key.
 *
 * The table is lockless: a writer claims a slot by compare-and-swap, writes the value, then the
 * fingerprint, so readers never combine one flow with another's node.
 */
#define OVERRIDE_FREE 0
/* Being written. */
#define OVERRIDE_CLAIMED 1
/* A last slot whose override was deleted. */
#define OVERRIDE_DELETED 2
#define OVERRIDE_LAST (OVERRIDE_SLOTS - 1)

/* Fields of a value: row, lower node bits, datagram flag, upper node bits, time of last use. */
#define OVERRIDE_ROW 36
#define OVERRIDE_NODE 24
#define OVERRIDE_DATAGRAMS (1ULL << 23)
#define OVERRIDE_NODE_HIGH 21
#define OVERRIDE_SEEN ((1ULL << OVERRIDE_NODE_HIGH) - 1)
#define OVERRIDE_OF_ROW ((1ULL << OVERRIDE_ROW) - 1)
/* log2 of ticks per time unit, which wraps after 6 days at 1000 Hz. */
#define OVERRIDE_TICKS 8

/* Number of buckets minus 1 (a power of two minus 1). Set by the loader. */
volatile const __u32 override_mask;

static __always_inline __u64 fingerprint_final(__u64 sum)
{
	__u64 fingerprint = hash_final(sum);

	return fingerprint > OVERRIDE_DELETED ? fingerprint : fingerprint + OVERRIDE_DELETED + 1;
}

/* Words and ports in network byte order; the lower half of ports is the client's. */

static __always_inline __u64 flow_fingerprint4(__u32 client, __u32 vip, __u32 ports, __u8 protocol)
{
	__u32 zero = 0;
	const struct fingerprint_secret *secret = bpf_map_lookup_elem(&fingerprint_key, &zero);

	if (!secret)
		return OVERRIDE_FREE;
	return fingerprint_final((client + secret->word[0]) * (vip + secret->word[1]) +
				 (ports + secret->word[2]) * (protocol + secret->word[3]));
}

static __always_inline __u64 flow_fingerprint6(const __be32 *client, const __be32 *vip, __u32 ports,
					       __u8 protocol)
{
	__u32 zero = 0;
	const struct fingerprint_secret *secret = bpf_map_lookup_elem(&fingerprint_key, &zero);
	const __u64 *key;

	if (!secret)
		return OVERRIDE_FREE;
	key = secret->word;
	return fingerprint_final((client[0] + key[4]) * (client[1] + key[5]) +
				 (client[2] + key[6]) * (client[3] + key[7]) +
				 (vip[0] + key[8]) * (vip[1] + key[9]) +
				 (vip[2] + key[10]) * (vip[3] + key[11]) +
				 (ports + key[2]) * (protocol + key[3]));
}

static __always_inline __u64 flow_fingerprint(const struct flow *flow)
{
	__u32 ports = two_ports(flow->client_port, flow->vip_port);

	if (flow->family == ADDRESS_FAMILY_IPV4)
		return flow_fingerprint4(flow->client.word[3], flow->vip.word[3], ports,
					 flow->protocol);
	return flow_fingerprint6(flow->client.word, flow->vip.word, ports, flow->protocol);
}

static __always_inline struct override_bucket *override_first(__u64 fingerprint)
{
	__u32 place = fingerprint & override_mask;

	return bpf_map_lookup_elem(&overrides, &place);
}

static __always_inline struct override_bucket *override_second(__u64 fingerprint)
{
	__u32 place = fingerprint >> 32 & override_mask;

	return bpf_map_lookup_elem(&overrides, &place);
}

static __always_inline __u64 *override_in(struct override_bucket *bucket, __u64 fingerprint)
{
#pragma unroll
	for (int i = 0; i < OVERRIDE_SLOTS; i++) {
		if (bucket->slot[i].fingerprint == fingerprint)
			return &bucket->slot[i].value;
	}
	return NULL;
}

static __always_inline __u64 *override_filter_word(__u64 fingerprint)
{
	__u32 word = (fingerprint & override_mask) / OVERRIDE_FILTERED;

	return bpf_map_lookup_elem(&override_filter, &word);
}

static __always_inline __u64 override_filter_bits(__u64 fingerprint)
{
	return 1ULL << (fingerprint >> 58) | 1ULL << (fingerprint >> 52 & 63);
}

static __always_inline __u64 *override_find(__u64 fingerprint)
{
	__u64 bits = override_filter_bits(fingerprint), *word = override_filter_word(fingerprint),
	      *found;
	struct override_bucket *bucket;

	if (!word || (*word & bits) != bits || fingerprint <= OVERRIDE_DELETED)
		return NULL;
	bucket = override_first(fingerprint);
	if (!bucket)
		return NULL;
	found = override_in(bucket, fingerprint);
	if (found || bucket->slot[OVERRIDE_LAST].fingerprint == OVERRIDE_FREE)
		return found;
	bucket = override_second(fingerprint);
	return bucket ? override_in(bucket, fingerprint) : NULL;
}

static __always_inline __u64 override_now(void)
{
	return bpf_jiffies64() >> OVERRIDE_TICKS & OVERRIDE_SEEN;
}

static __always_inline __u64 override_about(__u32 row, __u32 node, __u8 protocol)
{
	return (__u64)row << OVERRIDE_ROW | (node & NODE_ID_LOW) << OVERRIDE_NODE |
	       (__u64)(node >> NODE_ID_LOW_BITS) << OVERRIDE_NODE_HIGH | override_now() |
	       (protocol == IPPROTO_TCP ? 0 : OVERRIDE_DATAGRAMS);
}

static __always_inline __u32 override_node(__u64 value)
{
	return (value >> OVERRIDE_NODE & NODE_ID_LOW) | (value >> OVERRIDE_NODE_HIGH & NODE_ID_HIGH)
								<< NODE_ID_LOW_BITS;
}

static __always_inline int override_unused_for(__u64 value, __u32 seconds)
{
	__u64 units = (override_now() - value) & OVERRIDE_SEEN;

	return units >= (__u64)seconds * ticks_per_second >> OVERRIDE_TICKS;
}

static __always_inline int override_expired(__u64 value)
{
	return override_unused_for(value,
				   idle_seconds(value & OVERRIDE_DATAGRAMS ? FLOW_DATAGRAMS :
									     FLOW_ESTABLISHED));
}

/* Renews the time and the row, whose table may have moved. The slot may have been reused. */
static __always_inline void override_renew(__u64 *slot, __u64 value, __u32 row)
{
	__u64 renewed = (value & OVERRIDE_OF_ROW & ~OVERRIDE_SEEN) | (__u64)row << OVERRIDE_ROW |
			override_now();

	if (!tracing &&
	    (value >> OVERRIDE_ROW != row || override_unused_for(value, REFRESH_SECONDS)))
		__sync_val_compare_and_swap(slot, value, renewed);
}

static __always_inline void override_clear(struct override_bucket *bucket, int slot,
					   __u64 fingerprint)
{
	__sync_val_compare_and_swap(&bucket->slot[slot].fingerprint, fingerprint,
				    slot == OVERRIDE_LAST ? OVERRIDE_DELETED : OVERRIDE_FREE);
}

/* Global, so verified once, as override_insert. */
__noinline int override_delete(__u64 fingerprint)
{
	if (fingerprint <= OVERRIDE_DELETED || tracing)
		return 0;
	for (int i = 0; i < 2; i++) {
		struct override_bucket *bucket =
			i ? override_second(fingerprint) : override_first(fingerprint);

		/* Two CPUs may have added it concurrently. */
		for (int slot = 0; bucket && slot < OVERRIDE_SLOTS; slot++)
			if (bucket->slot[slot].fingerprint == fingerprint)
				override_clear(bucket, slot, fingerprint);
	}
	return 0;
}

static __always_inline __u32 override_free_slot(const struct override_bucket *bucket)
{
	__u32 slot = 0;

	for (; slot < OVERRIDE_SLOTS; slot++)
		if (bucket->slot[slot].fingerprint == OVERRIDE_FREE ||
		    bucket->slot[slot].fingerprint == OVERRIDE_DELETED)
			break;
	return slot;
}

/* Returns the least recently used slot of a full bucket. */
static __always_inline __u32 override_victim(const struct override_bucket *bucket)
{
	__u64 oldest = 0, now = override_now();
	__u32 victim = 0;

	for (int i = 0; i < OVERRIDE_SLOTS; i++) {
		__u64 age = (now - bucket->slot[i].value) & OVERRIDE_SEEN;

		if (bucket->slot[i].fingerprint != OVERRIDE_CLAIMED && age >= oldest) {
			oldest = age;
			victim = i;
		}
	}
	return victim;
}

/* Returns 0, or -1 if another CPU is writing the slot. */
static __always_inline int override_fill(struct override_bucket *bucket, __u32 slot,
					 __u64 fingerprint, __u64 value)
{
	__u64 old, *word = override_filter_word(fingerprint);

	slot &= OVERRIDE_SLOTS - 1;
	old = bucket->slot[slot].fingerprint;
	if (!word || old == OVERRIDE_CLAIMED ||
	    __sync_val_compare_and_swap(&bucket->slot[slot].fingerprint, old, OVERRIDE_CLAIMED) !=
		    old)
		return -1;
	bucket->slot[slot].value = value;
	/* The exchange is a barrier: a sweep that misses the bits sees the fingerprint. */
	__sync_lock_test_and_set(&bucket->slot[slot].fingerprint, fingerprint);
	__sync_fetch_and_or(word, override_filter_bits(fingerprint));
	return 0;
}

/* Attempts to claim a slot under contention. */
#define OVERRIDE_ATTEMPTS 4

/* Returns 0, or -1 if other CPUs claimed each slot. */
__noinline int override_insert(__u64 fingerprint, __u64 value)
{
	struct override_bucket *first = override_first(fingerprint);
	struct override_bucket *second = override_second(fingerprint);
	__u64 *found = override_find(fingerprint);

	if (!first || !second || fingerprint <= OVERRIDE_DELETED || tracing)
		return -1;
	if (found) {
		*found = value;
		return 0;
	}
	for (int attempt = 0; attempt < OVERRIDE_ATTEMPTS; attempt++) {
		struct override_bucket *bucket = first;
		__u32 slot = override_free_slot(bucket);

		if (slot == OVERRIDE_SLOTS) {
			bucket = second;
			slot = override_free_slot(bucket);
		}
		if (slot == OVERRIDE_SLOTS) {
			bucket = first;
			slot = override_victim(bucket);
		}
		if (!override_fill(bucket, slot, fingerprint, value))
			return 0;
	}
	return -1;
}
