/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "exception.h"

/* Writing the rows of a node table for the agent, so that the marks of a row change with it
 * and their ticks are the kernel's.
 */
struct rows_write {
	/* Rows from this index on are the table's. */
	__u32 first;
	/* How many of row_updates are to be written. */
	__u32 count;
	/* Nothing that stands in the rows is the table's own. */
	__u32 fresh;
	/* This node has only begun: the rows are older on the other nodes, and their datagrams
	 * may belong to flows that others hold.
	 */
	__u32 newcomer;
};

static __always_inline __u32 row_primary(__u64 way)
{
	return way_node(way, WAY_CHOOSER);
}

static long row_write(__u32 number, struct rows_write *write)
{
	struct row_update *update = bpf_map_lookup_elem(&row_updates, &number);
	__u32 index = write->first + (update ? update->row : 0);
	struct row_mark *mark = bpf_map_lookup_elem(&row_marks, &index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);
	__u64 way, old;

	if (!update || !mark || !row)
		return 1;
	old = row->way;
	if (write->fresh) {
		old = 0;
		mark->moved = 0;
		mark->excepted = 0;
	}
	way = update->way | (old & ROW_MARKED);
	/* A table may go on from another one's history. */
	if (row_primary(old) != row_primary(way) &&
	    (row_primary(old) || way & ROW_HISTORY || write->newcomer)) {
		mark->moved = mark_now();
		way |= ROW_MARKED;
	}
	row->way = way;
	return 0;
}
