/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "exception.h"
#include "settings.h"

/* Periodic sweep by the agent. Removes exceptions that have expired or whose node is gone, then
 * clears the marks of rows without exceptions. Exceptions that name the row's primary do not count;
 * they stay because the connection may be idle while its row moves again, which sets the mark
 * (row_update.h).
 */

static __always_inline int exception_is_over(__u64 about, const struct self *self)
{
	__u32 node = exception_node(about);

	return exception_expired(about) || (node != self->id && !node_is_known(node));
}

static __always_inline int exception_is_of_primary(__u64 about)
{
	__u32 index = about >> EXCEPTION_ROW;
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	return row && row_primary(row->path) == exception_node(about);
}

/* Filter bits of a bucket; all bits if flows have overflowed to their second bucket. */
static __always_inline __u64 bucket_bits(const struct exception_bucket *bucket)
{
	__u64 bits = bucket->slot[EXCEPTION_LAST].print == EXCEPTION_FREE ? 0 : ~0ULL;

	for (int i = 0; i < EXCEPTION_SLOTS; i++)
		if (bucket->slot[i].print > EXCEPTION_GONE)
			bits |= exception_filter_bits(bucket->slot[i].print);
	return bits;
}

static __always_inline void sweep_bucket(struct exception_bucket *bucket, const struct self *self,
					 struct exception_sweep *sweep)
{
	for (int i = 0; i < EXCEPTION_SLOTS; i++) {
		__u64 print = bucket->slot[i].print, about = bucket->slot[i].about;
		__u32 index = about >> EXCEPTION_ROW;
		struct group_mark *mark;

		if (print <= EXCEPTION_GONE)
			continue;
		if (exception_is_over(about, self)) {
			exception_clear(bucket, i, print);
			continue;
		}
		sweep->left++;
		if (exception_is_of_primary(about))
			continue;
		mark = mark_of(index);
		if (mark)
			mark_excepted(mark);
	}
}

/* Sweeps the buckets of a filter word and rebuilds the word. An exception that is added
 * concurrently is written before its bits: either its bits are set after the word is rebuilt, or
 * the second pass over the buckets finds it.
 */
static long sweep_word(__u32 number, struct exception_sweep *sweep)
{
	__u32 place = sweep->first + number;
	__u64 *word = bpf_map_lookup_elem(&exception_filter, &place), bits = 0;
	struct self *self = settings_get();
	struct exception_bucket *bucket;

	if (!word || !self)
		return 1;
	for (int i = 0; i < EXCEPTION_FILTERED; i++) {
		__u32 at = place * EXCEPTION_FILTERED + i;

		bucket = bpf_map_lookup_elem(&exceptions, &at);
		if (!bucket)
			continue;
		sweep_bucket(bucket, self, sweep);
		bits |= bucket_bits(bucket);
	}
	/* The exchange is a barrier. */
	if (__sync_lock_test_and_set(word, bits) == bits && !bits)
		return 0;
	for (int i = 0; i < EXCEPTION_FILTERED; i++) {
		__u32 at = place * EXCEPTION_FILTERED + i;

		bucket = bpf_map_lookup_elem(&exceptions, &at);
		if (bucket)
			__sync_fetch_and_or(word, bucket_bits(bucket));
	}
	return 0;
}

/* Clears the mark of a row whose group has no exceptions. An exception that is added concurrently
 * updates the time before it sets the mark. The time is therefore compared before the mark is
 * cleared and checked again afterwards, and times since the start of the sweep are kept.
 */
static long rest_row(__u32 number, struct exception_sweep *sweep)
{
	__u32 index = sweep->first + number, noted;
	struct group_mark *mark = mark_of(index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!mark || !row)
		return 1;
	if (!(row->path & ROW_EXCEPTED))
		return 0;
	/* 0 was set for another row of the group: old, whatever the clock. */
	noted = mark->excepted;
	if ((noted && (__s32)(noted - sweep->since) >= 0) ||
	    __sync_val_compare_and_swap(&mark->excepted, noted, 0) != noted) {
		sweep->left++;
		return 0;
	}
	if (__sync_fetch_and_and(&row->path, ~ROW_EXCEPTED) & ROW_EXCEPTED && mark->excepted)
		__sync_fetch_and_or(&row->path, ROW_EXCEPTED);
	return 0;
}
