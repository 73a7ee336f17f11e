/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "override.h"
#include "settings.h"

/* Periodic sweep by the agent. Removes overrides that have expired or whose node is gone, then
 * clears the flags of rows without overrides. Overrides that name the row's primary do not count;
 * they stay because the connection may be idle while its row moves again, which sets the flag
 * (row_update.h).
 */

static __always_inline int override_is_stale(__u64 value, const struct self *self)
{
	__u32 node = override_node(value);

	return override_expired(value) || (node != self->id && !node_is_known(node));
}

static __always_inline int override_is_of_primary(__u64 value)
{
	__u32 index = value >> OVERRIDE_ROW;
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	return row && row_primary(row->path) == override_node(value);
}

/* Filter bits of a bucket; all bits if flows have overflowed to their second bucket. */
static __always_inline __u64 bucket_bits(const struct override_bucket *bucket)
{
	__u64 bits = bucket->slot[OVERRIDE_LAST].fingerprint == OVERRIDE_FREE ? 0 : ~0ULL;

	for (int i = 0; i < OVERRIDE_SLOTS; i++)
		if (bucket->slot[i].fingerprint > OVERRIDE_DELETED)
			bits |= override_filter_bits(bucket->slot[i].fingerprint);
	return bits;
}

static __always_inline void sweep_bucket(struct override_bucket *bucket, const struct self *self,
					 struct override_sweep *sweep)
{
	for (int i = 0; i < OVERRIDE_SLOTS; i++) {
		__u64 fingerprint = bucket->slot[i].fingerprint, value = bucket->slot[i].value;
		__u32 index = value >> OVERRIDE_ROW;
		struct row_group *group;

		if (fingerprint <= OVERRIDE_DELETED)
			continue;
		if (override_is_stale(value, self)) {
			override_clear(bucket, i, fingerprint);
			continue;
		}
		sweep->left++;
		if (override_is_of_primary(value))
			continue;
		group = row_group_of(index);
		if (group)
			row_group_overridden(group);
	}
}

/* Sweeps the buckets of a filter word and rebuilds the word. An override that is added
 * concurrently is written before its bits: either its bits are set after the word is rebuilt, or
 * the second pass over the buckets finds it.
 */
static long sweep_word(__u32 number, struct override_sweep *sweep)
{
	__u32 place = sweep->first + number;
	__u64 *word = bpf_map_lookup_elem(&override_filter, &place), bits = 0;
	struct self *self = settings_get();
	struct override_bucket *bucket;

	if (!word || !self)
		return 1;
	for (int i = 0; i < OVERRIDE_FILTERED; i++) {
		__u32 at = place * OVERRIDE_FILTERED + i;

		bucket = bpf_map_lookup_elem(&overrides, &at);
		if (!bucket)
			continue;
		sweep_bucket(bucket, self, sweep);
		bits |= bucket_bits(bucket);
	}
	/* The exchange is a barrier. */
	if (__sync_lock_test_and_set(word, bits) == bits && !bits)
		return 0;
	for (int i = 0; i < OVERRIDE_FILTERED; i++) {
		__u32 at = place * OVERRIDE_FILTERED + i;

		bucket = bpf_map_lookup_elem(&overrides, &at);
		if (bucket)
			__sync_fetch_and_or(word, bucket_bits(bucket));
	}
	return 0;
}

/* Clears the flag of a row whose group has no overrides. An override that is added concurrently
 * updates the time before it sets the flag. The time is therefore compared before the flag is
 * cleared and checked again afterwards, and times since the start of the sweep are kept.
 */
static long clear_row_flag(__u32 number, struct override_sweep *sweep)
{
	__u32 index = sweep->first + number, noted;
	struct row_group *group = row_group_of(index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!group || !row)
		return 1;
	if (!(row->path & ROW_OVERRIDDEN))
		return 0;
	/* 0 was set for another row of the group: old, whatever the clock. */
	noted = group->overridden;
	if ((noted && (__s32)(noted - sweep->since) >= 0) ||
	    __sync_val_compare_and_swap(&group->overridden, noted, 0) != noted) {
		sweep->left++;
		return 0;
	}
	if (__sync_fetch_and_and(&row->path, ~ROW_OVERRIDDEN) & ROW_OVERRIDDEN && group->overridden)
		__sync_fetch_and_or(&row->path, ROW_OVERRIDDEN);
	return 0;
}
