/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "flow_timeout.h"
#include "row.h"

/* Writes rows of a node table for the agent, with their timestamps in kernel ticks. */
struct rows_write {
	/* Index of the table's first row. */
	__u32 first;
	/* Number of row_updates. */
	__u32 count;
	/* Number of leading rows with stale content and timestamps of another table. */
	__u32 fresh;
	/* This node has just started, so datagrams may belong to flows on other nodes. */
	__u32 newcomer;
	/* The table was moved and this node has overrides, which name the old rows until used. */
	__u32 overridden;
};

/* Range of rows, for read_rows and the programs for endpoint tables. */
struct rows_read {
	__u32 first;
	__u32 count;
};

/* Reports whether the newest former primary is not yet in the row's history. */
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

/* Clears stale timestamps before the first rows of a table are written. */
static long row_group_clear(__u32 number, struct rows_write *write)
{
	struct row_group *group = row_group_of(write->first + number * ROW_GROUP);

	if (!group)
		return 1;
	group->moved = 0;
	group->overridden = 0;
	return 0;
}

static long row_write(__u32 number, struct rows_write *write)
{
	struct row_update *update = bpf_map_lookup_elem(&row_updates, &number);
	__u32 index = write->first + (update ? update->row : 0);
	struct row_group *group = row_group_of(index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);
	__u64 path, old;

	if (!update || !group || !row)
		return 1;
	old = write->fresh ? 0 : row->path;
	path = update->path | (old & ROW_MOVED);
	/* A new table may start with or adopt the history of another one. */
	if ((row_primary(old) != row_primary(path) &&
	     (row_primary(old) || path & ROW_HISTORY || write->newcomer)) ||
	    row_history_grows(path, old)) {
		group->moved = stamp_now();
		/* Overrides may have named the old primary; the next sweep decides. */
		row_group_overridden(group);
		path |= ROW_MOVED;
	}
	if (write->overridden)
		group->overridden =
			clock_now() + idle_seconds(FLOW_ESTABLISHED) * ticks_per_second ?: 1;
	/* The exchange is a barrier: an override that is added concurrently either flags the row
	 * later or has updated the time. Other rows of the group may be flagged in vain, until a
	 * sweep.
	 */
	__sync_lock_test_and_set(&row->path, path);
	if (group->overridden)
		__sync_fetch_and_or(&row->path, ROW_OVERRIDDEN);
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

/* Endpoint tables: the id replaces the row number. */

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
