/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "maps.h"
#include "path.h"

/* Rows of node and endpoint tables; each kind is one array. */

/* For the fields of a table's id see NodeTableSlot of package forwarding. */
static __always_inline __u32 row_first(__u32 table)
{
	return (table & TABLE_BLOCK) * ROWS +
	       (table >> TABLE_PART & (ROWS / MIN_ROWS - 1)) * MIN_ROWS;
}

static __always_inline __u32 row_index(__u32 table, __u32 hash)
{
	return row_first(table) + (hash >> ((ROW_SHIFT - ((__s32)table >> TABLE_SIZE)) & 31));
}

static __always_inline struct row *row_of(__u32 table, __u32 hash)
{
	__u32 index = row_index(table, hash);

	return bpf_map_lookup_elem(&rows, &index);
}

/* The row number wraps. */
static __always_inline __u32 endpoint_row_index(__u32 table, __u32 row)
{
	return table * ENDPOINT_ROWS + (row & (ENDPOINT_ROWS - 1));
}

/* Row: a path, with flags and upper id bits in place of the ingress node. */
#define ROW_HISTORY (3ULL << PATH_INGRESS)
#define ROW_HIGH 54
#define ROW_HIGH_BITS 0xffU
/* The primary changed recently; row_groups has the time, or a later one. */
#define ROW_MOVED (1ULL << 62)
/* Flows of the row may have overrides. */
#define ROW_OVERRIDDEN (1ULL << 63)
#define ROW_FLAGGED (ROW_MOVED | ROW_OVERRIDDEN)
#define ROW_PATH ((1ULL << PATH_INGRESS) - 1)

/* Number of former primaries in the chain. */
static __always_inline int row_history(__u64 row)
{
	return (row & ROW_HISTORY) >> PATH_INGRESS;
}

static __always_inline struct path row_path(__u64 row)
{
	return (struct path){ .word = row & ROW_PATH, .high = row >> ROW_HIGH & ROW_HIGH_BITS };
}

static __always_inline __u32 row_primary(__u64 row)
{
	return path_node(row_path(row), PATH_CHOOSER);
}

/* Path of a packet with this node as ingress node. */
static __always_inline struct path path_by_row(__u64 row, const struct self *self)
{
	return path_with(row_path(row), PATH_INGRESS, self->id);
}

/* Path of a packet with this node as chooser, whatever the row's primary. */
static __always_inline struct path path_of_own(const struct self *self)
{
	return path_with(path_with((struct path){}, PATH_INGRESS, self->id), PATH_CHOOSER,
			 self->id);
}

/* Chain for such a packet: the row's primary and its chain, without this node. */
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

/* ROW_GROUP rows share timestamps, to save memory. They are the latest of all rows of the group. A
 * row may thus appear to have moved later than it did, which only causes unneeded lookups
 * (docs/design.md). Clearing a timestamp must respect the other rows.
 */
static __always_inline struct row_group *row_group_of(__u32 index)
{
	__u32 group = index / ROW_GROUP;

	return bpf_map_lookup_elem(&row_groups, &group);
}

static __always_inline int stamp_is_recent(__u32 ticks, __u32 seconds)
{
	return ticks && !clock_passed(ticks, seconds);
}

/* 0 means never. */
static __always_inline __u32 stamp_now(void)
{
	return clock_now() ?: 1;
}

/* Times in the future are retained: overrides may name the rows' old indexes (row_update.h). */
static __always_inline void row_group_overridden(struct row_group *group)
{
	__u32 now = stamp_now(), noted = group->overridden;

	/* The exchange is a barrier. */
	if (!noted || (__s32)(noted - now) < 0)
		__sync_lock_test_and_set(&group->overridden, now);
}
