/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "maps.h"
#include "path.h"

/* Rows of tables. A kind of table is one array. */

/* The first row of a node table. That is named as a NodeTableSlot of package forwarding: by a block
 * of ROWS rows, a part of that in units of LEAST_ROWS, and its size as a signed power of two, times
 * ROWS.
 */
static __always_inline __u32 row_first(__u32 table)
{
	return (table & TABLE_BLOCK) * ROWS +
	       (table >> TABLE_PART & (ROWS / LEAST_ROWS - 1)) * LEAST_ROWS;
}

/* The row of a node table that the hash picks. */
static __always_inline __u32 row_index(__u32 table, __u32 hash)
{
	return row_first(table) + (hash >> ((ROW_SHIFT - ((__s32)table >> TABLE_SIZE)) & 31));
}

static __always_inline struct row *row_of(__u32 table, __u32 hash)
{
	__u32 index = row_index(table, hash);

	return bpf_map_lookup_elem(&rows, &index);
}

/* The row of an endpoint table. Behind the last row comes the first again. */
static __always_inline __u32 endpoint_row_index(__u32 table, __u32 row)
{
	return table * ENDPOINT_ROWS + (row & (ENDPOINT_ROWS - 1));
}

/* A row holds a path. In the place of the ingress node it has how many nodes of its chain
 * are previous primaries, the upper bits of the other ids, and two marks. Only the programs set and
 * clear these.
 */
#define ROW_HISTORY (3ULL << PATH_INGRESS)
#define ROW_HIGH 54
#define ROW_HIGH_BITS 0xffU
/* The primary changed not long ago; group_marks has when, or later. */
#define ROW_MOVED (1ULL << 62)
/* Flows of the row may be exceptions. */
#define ROW_EXCEPTED (1ULL << 63)
#define ROW_MARKED (ROW_MOVED | ROW_EXCEPTED)
#define ROW_PATH ((1ULL << PATH_INGRESS) - 1)

/* How many nodes of the row's chain are previous primaries. */
static __always_inline int row_history(__u64 row)
{
	return (row & ROW_HISTORY) >> PATH_INGRESS;
}

/* The path of a row, without an ingress node. */
static __always_inline struct path row_path(__u64 row)
{
	return (struct path){ .word = row & ROW_PATH, .high = row >> ROW_HIGH & ROW_HIGH_BITS };
}

static __always_inline __u32 row_primary(__u64 row)
{
	return path_node(row_path(row), PATH_CHOOSER);
}

/* The path of a packet that came in here, by its row. */
static __always_inline struct path path_by_row(__u64 row, const struct self *self)
{
	return path_with(row_path(row), PATH_INGRESS, self->id);
}

/* The path of a packet for which this node chooses, whatever its row says. */
static __always_inline struct path path_of_own(const struct self *self)
{
	return path_with(path_with((struct path){}, PATH_INGRESS, self->id), PATH_CHOOSER,
			 self->id);
}

/* A path with the chain of such a packet: the row's primary, then its chain, as far as there is
 * room. This node takes none.
 */
static __always_inline struct path chain_behind(__u64 row, const struct self *self)
{
	struct path path = row_path(row);
	struct path chain = { .word = path.word >> NODE_ID_LOW_BITS,
			      .high = path.high >> NODE_ID_HIGH_BITS };
	__u64 behind = PATH_CHAIN;
	__u32 high = PATH_HIGH_CHAIN;

#pragma unroll
	for (int place = PATH_CHOOSER; place > PATH_FLAGS; place -= NODE_ID_LOW_BITS) {
		if (path_node(path, place) == self->id) {
			chain.word = (chain.word & ~behind) | (path.word & behind);
			chain.high = (chain.high & ~high) | (path.high & high);
			return chain;
		}
		behind = behind >> NODE_ID_LOW_BITS & PATH_CHAIN;
		high >>= NODE_ID_HIGH_BITS;
	}
	return chain;
}

/* The mark of the row with the index. ROW_GROUP rows share one: a mark for each would take as much
 * memory as the rows. It has the latest times of all of them. So a row may seem to have moved later
 * than it did, never earlier: then more nodes are asked, or the filter of exceptions is.
 * docs/design.md has why nothing is lost. What is done with one row must not clear what the
 * others need.
 */
static __always_inline struct group_mark *mark_of(__u32 index)
{
	__u32 group = index / ROW_GROUP;

	return bpf_map_lookup_elem(&group_marks, &group);
}

static __always_inline int mark_is_young(__u32 ticks, __u32 seconds)
{
	return ticks && !clock_passed(ticks, seconds);
}

/* Zero means never. */
static __always_inline __u32 mark_now(void)
{
	return clock_now() ?: 1;
}

/* Notes that flows of the group may be exceptions. A time to come stays: it is until when exceptions
 * may name rows that these were before (row_update.h).
 */
static __always_inline void mark_excepted(struct group_mark *mark)
{
	__u32 now = mark_now(), noted = mark->excepted;

	/* An exchange is a barrier, too. */
	if (!noted || (__s32)(noted - now) < 0)
		__sync_lock_test_and_set(&mark->excepted, now);
}
