/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "exception.h"
#include "settings.h"

/* The agent sweeps the exceptions: those that have expired, or whose node is gone, are removed.
 * Then the rows that have none left come to rest. So do those whose exceptions name the row's
 * primary: packets get there without them. Such an exception stays, for a connection may be
 * silent while its row moves on. When the row moves, it is marked again (row_update.h).
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

/* The bits that the bucket needs in the filter. Where flows were put into their second bucket,
 * these are all.
 */
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

/* Sweeps the buckets of a word of the filter, and makes that word anew. An exception may be
 * learned at the same time: its print is written before its bits. If those are written before
 * the word, the buckets are read once more after that, and have the print. Else they stay.
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
	/* An exchange is a barrier, too. */
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

/* Removes the mark of a row whose group has no exceptions. One may be learned at the same time: its
 * time is noted before its mark is made. If it is noted before the time is compared here, the
 * row stays as it is. If it is noted before the mark is removed, it is seen after that, and the
 * mark comes back. Else its mark is made later, and stays. All this holds whichever row of the group
 * has the exception: a time since the sweep began is never taken away.
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
	/* Zero is what another row of the group has left: it is of long ago, whatever the clock says. */
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
