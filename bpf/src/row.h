/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "maps.h"
#include "path.h"

/* Rows of tables. A kind of table is one array, with the tables one behind the other. */

/* The row of a node table that the hash picks. */
static __always_inline __u32 row_index(__u32 table, __u32 hash)
{
	return table * ROWS + (hash >> ROW_SHIFT);
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
 * are former primaries, and two marks. Only the programs set and clear these.
 */
#define ROW_HISTORY (3ULL << PATH_INGRESS)
/* The primary changed not long ago; row_marks has when. */
#define ROW_MOVED (1ULL << 62)
/* Flows of the row may be exceptions. */
#define ROW_EXCEPTED (1ULL << 63)
#define ROW_MARKED (ROW_MOVED | ROW_EXCEPTED)
#define ROW_PATH ((1ULL << PATH_INGRESS) - 1)

/* How many nodes of the row's chain are former primaries. */
static __always_inline int row_history(__u64 row)
{
	return (row & ROW_HISTORY) >> PATH_INGRESS;
}

/* The path of a packet that came in here, by its row. */
static __always_inline __u64 path_by_row(__u64 row, const struct self *self)
{
	return (row & ROW_PATH) | (__u64)self->id << PATH_INGRESS;
}

/* The path of a packet for which this node chooses, whatever its row says. */
static __always_inline __u64 path_of_own(const struct self *self)
{
	return (__u64)self->id << PATH_INGRESS | (__u64)self->id << PATH_CHOOSER;
}

/* The chain of such a packet: the row's primary, then its chain, as far as there is room. This node
 * takes none.
 */
static __always_inline __u64 chain_behind(__u64 row, const struct self *self)
{
	__u64 chain = row >> NODE_ID_BITS & PATH_CHAIN, behind = PATH_CHAIN;

#pragma unroll
	for (int place = PATH_CHOOSER; place > PATH_FLAGS; place -= NODE_ID_BITS) {
		if (path_node(row, place) == self->id)
			return (chain & ~behind) | (row & behind);
		behind = behind >> NODE_ID_BITS & PATH_CHAIN;
	}
	return chain;
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
