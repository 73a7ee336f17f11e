/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "clock.h"
#include "override_table.h"
#include "hash.h"
#include "maps.h"
#include "trace.h"

/* Table of session affinity records. Untrusted hosts can create any number of records, by spoofed
 * datagrams to which pods reply or by connections from a compromised pod. An LRU map would evict
 * the records of all Services.
 *
 * A full bucket evicts the oldest record of the VIP with the most records in it, including the new
 * one, so a flood of one VIP evicts its own clients first. Expired records count as free. TCP uses
 * the upper half of the buckets because its records require more than two datagrams. Buckets are
 * selected with a secret, so that clients cannot be chosen to share one.
 *
 * The table is lockless. If two CPUs claim one slot concurrently, a client's key may get the other
 * client's endpoint of the same endpoint table, so at worst one client loses its affinity.
 */

/* Number of buckets of a half minus 1 (a power of two minus 1). Set by the loader. */
volatile const __u32 affinity_mask;

__noinline __u32 affinity_place(const struct flow *flow, __u32 table)
{
	const __be32 *word;
	__u32 place;

	if (!flow)
		return 0;
	word = flow->client.word;
	place = flow_fingerprint6(word, word, table, 0) & affinity_mask;
	return flow->protocol == IPPROTO_TCP ? place + affinity_mask + 1 : place;
}

static __always_inline int is_affinity_of(const struct affinity_record *record,
					  const struct address *client, __u32 table)
{
	return record->key.endpoint_table == table && address_equal(&record->key.client, client);
}

/* Returns 1 plus the slot of the client's record, or 0. Global, so verified once. */
__noinline int affinity_find_slot(const struct affinity_bucket *bucket,
				  const struct address *client, __u32 table)
{
	if (!bucket || !client)
		return 0;
	for (int i = 0; i < AFFINITY_SLOTS; i++)
		if (is_affinity_of(&bucket->record[i], client, table))
			return 1 + i;
	return 0;
}

/* The barrier keeps the compiler from removing the mask, which the verifier needs. */
static __always_inline struct affinity_record *affinity_at(struct affinity_bucket *bucket,
							   __u32 slot)
{
	asm volatile("" : "+r"(slot));
	return &bucket->record[slot & (AFFINITY_SLOTS - 1)];
}

static __always_inline struct affinity_record *affinity_record_of(const struct flow *flow,
								  __u32 table)
{
	__u32 index = affinity_place(flow, table), place;
	struct affinity_bucket *bucket = bpf_map_lookup_elem(&affinities, &index);

	if (!bucket || !table)
		return NULL;
	place = affinity_find_slot(bucket, &flow->client, table);
	if (!place)
		return NULL;
	return affinity_at(bucket, place - 1);
}

static __always_inline struct affinity *affinity_record_find(const struct flow *flow, __u32 table)
{
	struct affinity_record *record = affinity_record_of(flow, table);

	return record ? &record->affinity : NULL;
}

static __always_inline void affinity_record_delete(const struct flow *flow, __u32 table)
{
	struct affinity_record *record = affinity_record_of(flow, table);

	if (record && !tracing)
		record->key.endpoint_table = 0;
}

/* Returns 1 if a equals b, else 0. Branch-free to save verifier states. */
static __always_inline __u32 same(__u32 a, __u32 b)
{
	__u64 differ = a ^ b;

	asm volatile("" : "+r"(differ));
	return (differ - 1) >> 63;
}

/* Eviction rank, highest first: free, number of the VIP's records, same VIP, age, slot. */
static __always_inline __u64 affinity_rank(const struct affinity_bucket *bucket, __u32 slot,
					   __u32 owner)
{
	const struct affinity_record *record = &bucket->record[slot];
	__u32 own = same(record->owner, owner), many = own;
	__u64 age = clock_now() - record->affinity.seen;

	if (!record->key.endpoint_table || age >= (__u64)record->timeout * ticks_per_second)
		return 1ULL << 63 | slot;
#pragma unroll
	for (int i = 0; i < AFFINITY_SLOTS; i++)
		many += same(bucket->record[i].owner, record->owner);
	return (__u64)(2 * many + own) << 40 | age << 8 | slot;
}

/* Global, so verified once. */
__noinline int affinity_victim(const struct affinity_bucket *bucket, __u32 owner)
{
	__u64 most = 0;

	if (!bucket)
		return 0;
#pragma unroll
	for (int i = 0; i < AFFINITY_SLOTS; i++) {
		__u64 rank = affinity_rank(bucket, i, owner);

		if (rank > most)
			most = rank;
	}
	return most & (AFFINITY_SLOTS - 1);
}

/* Claims a slot for a new record. The key is invalid while the record is written. */
static __always_inline struct affinity_record *affinity_claim(struct affinity_bucket *bucket,
							      const struct flow *flow)
{
	__u32 owner = hash_final(hash_vip(flow->vip.word));
	struct affinity_record *record = affinity_at(bucket, affinity_victim(bucket, owner));

	record->key.endpoint_table = 0;
	asm volatile("" ::: "memory");
	record->key.client = flow->client;
	record->owner = owner;
	return record;
}

__noinline int affinity_record_put(const struct packet *packet, const struct frontend *frontend,
				   __u32 id, __u32 tag)
{
	struct affinity_bucket *bucket;
	struct affinity_record *record;
	__u32 index, place;

	if (!packet || !frontend || !frontend->endpoints || tracing)
		return 0;
	index = affinity_place(&packet->flow, frontend->endpoints);
	bucket = bpf_map_lookup_elem(&affinities, &index);
	if (!bucket)
		return 0;
	place = affinity_find_slot(bucket, &packet->flow.client, frontend->endpoints);
	if (place)
		record = affinity_at(bucket, place - 1);
	else
		record = affinity_claim(bucket, &packet->flow);
	if (!place || record->affinity.endpoint != id || record->affinity.tag != tag)
		record->affinity.row = packet->endpoint_hash >> ENDPOINT_ROW_SHIFT;
	record->affinity.endpoint = id;
	record->affinity.tag = tag;
	record->affinity.seen = clock_now();
	record->timeout = frontend->affinity;
	asm volatile("" ::: "memory");
	record->key.endpoint_table = frontend->endpoints;
	return 0;
}
