/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "flow_timeout.h"
#include "row.h"

/* Writes rows of a node table for the agent. In the kernel, the marks of a row change with it,
 * and have the kernel's ticks.
 */
struct rows_write {
	/* Rows from this index on are the table's. */
	__u32 first;
	/* How many of row_updates to write. */
	__u32 count;
	/* So many rows from the first one on still have another table's content, with its marks. */
	__u32 fresh;
	/* This node has just started, but the rows are older on other nodes. A datagram may belong
	 * to a flow that another node holds.
	 */
	__u32 newcomer;
	/* The table goes on from one in another place, and this node has exceptions. They name the rows
	 * of that one until they are used.
	 */
	__u32 excepted;
};

/* The request of read_rows, and of the programs for endpoint tables: so many rows from this index
 * on.
 */
struct rows_read {
	__u32 first;
	__u32 count;
};

/* Reports whether the newest previous primary was none before: that of another table, which is
 * gone.
 */
static __always_inline int row_history_grows(__u64 path, __u64 old)
{
	__u32 newest = path_node(row_path(path), PATH_NEXT);
	struct path previous = row_path(old);

	if (!(path & ROW_HISTORY))
		return 0;
#pragma unroll
	for (int i = 0; i < CHAIN_LENGTH; i++) {
		if (i < row_history(old) && path_node(previous, PATH_NEXT) == newest)
			return 0;
		previous = path_advance(previous);
	}
	return 1;
}

/* Clears the marks of a table before its first rows are written: they are another table's. Afterwards
 * they are of rows that are written already.
 */
static long group_clear(__u32 number, struct rows_write *write)
{
	struct group_mark *mark = mark_of(write->first + number * ROW_GROUP);

	if (!mark)
		return 1;
	mark->moved = 0;
	mark->excepted = 0;
	return 0;
}

static long row_write(__u32 number, struct rows_write *write)
{
	struct row_update *update = bpf_map_lookup_elem(&row_updates, &number);
	__u32 index = write->first + (update ? update->row : 0);
	struct group_mark *mark = mark_of(index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);
	__u64 path, old;

	if (!update || !mark || !row)
		return 1;
	old = write->fresh ? 0 : row->path;
	path = update->path | (old & ROW_MOVED);
	/* A new table may begin with the history of another one, or take it over. */
	if ((row_primary(old) != row_primary(path) &&
	     (row_primary(old) || path & ROW_HISTORY || write->newcomer)) ||
	    row_history_grows(path, old)) {
		mark->moved = mark_now();
		/* Its exceptions may have named the old primary. The next sweep knows. */
		mark_excepted(mark);
		path |= ROW_MOVED;
	}
	if (write->excepted)
		mark->excepted =
			clock_now() + idle_seconds(FLOW_ESTABLISHED) * ticks_per_second ?: 1;
	/* An exchange is a barrier, too. An exception that is learned now marks the row after
	 * it, or is noted already. One of another row of the group marks this one for nothing, until a
	 * sweep.
	 */
	__sync_lock_test_and_set(&row->path, path);
	if (mark->excepted)
		__sync_fetch_and_or(&row->path, ROW_EXCEPTED);
	return 0;
}

static long row_read(__u32 number, struct rows_read *read)
{
	struct row_update *found = bpf_map_lookup_elem(&row_updates, &number);
	__u32 index = read->first + number;
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!found || !row)
		return 1;
	found->row = number;
	found->path = row->path;
	return 0;
}

/* The same of endpoint tables, whose rows are ids alone: they stand where the row's number does. */

static long endpoint_row_write(__u32 number, struct rows_read *write)
{
	struct row_update *update = bpf_map_lookup_elem(&row_updates, &number);
	__u32 index = write->first + number;
	__u32 *id = bpf_map_lookup_elem(&endpoint_rows, &index);

	if (!update || !id)
		return 1;
	*id = update->row;
	return 0;
}

static long endpoint_row_read(__u32 number, struct rows_read *read)
{
	struct row_update *found = bpf_map_lookup_elem(&row_updates, &number);
	__u32 index = read->first + number;
	__u32 *id = bpf_map_lookup_elem(&endpoint_rows, &index);

	if (!found || !id)
		return 1;
	found->row = *id;
	return 0;
}
