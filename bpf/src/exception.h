/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "count.h"
#include "exception_table.h"
#include "maps.h"
#include "node.h"
#include "path.h"
#include "row.h"
#include "settings.h"
#include "trace.h"
#include "zone.h"

/* Exceptions: flows of moved rows, and the nodes that hold them. See docs/design.md. */

/* Idle timeout of UDP flows plus propagation of rows, in seconds. */
#define ROW_MOVED_SECONDS 240

static __always_inline void exception_learn(const struct flow *flow, __u32 index, __u32 holder)
{
	struct group_mark *mark = mark_of(index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!mark || !row || tracing)
		return;
	if (exception_put(exception_print(flow), exception_about(index, holder, flow->protocol)))
		return;
	mark_excepted(mark);
	__sync_fetch_and_or(&row->path, ROW_EXCEPTED);
	count_event(EVENT_EXCEPTION_LEARNED);
}

static __always_inline void exception_withdraw(const struct flow *flow, __u32 node)
{
	__u64 print = exception_print(flow), *found = exception_find(print);

	if (found && exception_node(*found) == node)
		exception_forget(print);
}

static __always_inline __u32 exception_holder(const struct packet *packet, __u32 self, __u32 index)
{
	__u64 print = exception_print(&packet->flow), *found = exception_find(print), about;
	__u32 node;

	if (!found)
		return 0;
	about = *found;
	node = exception_node(about);
	if (exception_expired(about) || node == path_node(packet->path, PATH_CHOOSER) ||
	    (node != self && !node_is_known(node))) {
		exception_forget(print);
		return 0;
	}
	exception_renew(found, about, index);
	count_event(EVENT_EXCEPTION_USED);
	return node;
}

/* Returns the holder of a Local frontend's flow according to its notice, or 0. The ingress node
 * uses the exception unless it was just rejected. A current or former primary forwards the packet
 * to the holder once; the holder forwards to no other node.
 */
__noinline int local_holder(struct packet *packet, const struct self *self,
			    const struct frontend *frontend)
{
	__u64 print, *found, about;
	__u32 node;

	if (!packet || !self || !frontend)
		return 0;
	if (!(frontend->flags & FRONTEND_LOCAL) && !(packet->sender && is_switched(frontend)))
		return 0;
	if (packet->sender ? packet->asks_nobody : packet->path.word & PATH_WALK)
		return 0;
	print = exception_print(&packet->flow);
	found = exception_find(print);
	if (!found)
		return 0;
	about = *found;
	node = exception_node(about);
	if (exception_expired(about) || !node_is_known(node) || node == self->id)
		return 0;
	/* With policy Local, the ingress node has looked up the flow. */
	if (frontend->flags & FRONTEND_LOCAL && node == path_node(packet->path, PATH_INGRESS))
		return 0;
	exception_renew(found, about, row_index(frontend->table, packet->node_hash));
	trace_step(TRACE_EXCEPTION);
	count_event(EVENT_EXCEPTION_USED);
	if (packet->sender)
		packet->asks_nobody = 1;
	else
		packet->path = path_walking(path_as(packet->path, PATH_EXCEPTION));
	return node;
}

/* Restores the mark if the row moves concurrently: row_write sets the time first. */
static __always_inline void row_came_to_rest(struct row *row, const struct group_mark *mark)
{
	if (tracing)
		return;
	if (__sync_fetch_and_and(&row->path, ~ROW_MOVED) & ROW_MOVED &&
	    mark_is_young(mark->moved, ROW_MOVED_SECONDS))
		__sync_fetch_and_or(&row->path, ROW_MOVED);
}

/* Returns the node for a packet on a marked row. The packet has the row's path. */
__noinline int marked_node(struct packet *packet, const struct self *self, __u32 index)
{
	struct group_mark *mark = mark_of(index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);
	__u32 holder;
	int moved;

	if (!packet || !self || !mark || !row)
		return 0;
	moved = mark_is_young(mark->moved, ROW_MOVED_SECONDS);
	if (!moved && row->path & ROW_MOVED)
		row_came_to_rest(row, mark);
	if (row->path & ROW_EXCEPTED) {
		holder = exception_holder(packet, self->id, index);
		if (holder) {
			trace_step(TRACE_EXCEPTION);
			packet->path = path_walking(path_as(packet->path, PATH_EXCEPTION));
			return holder;
		}
	}
	if (moved)
		packet->path = path_walking(packet->path);
	return path_node(packet->path, PATH_CHOOSER);
}
