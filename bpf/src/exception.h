/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "conntrack.h"
#include "count.h"
#include "flow_timeout.h"
#include "maps.h"
#include "node.h"
#include "path.h"
#include "row.h"
#include "settings.h"
#include "trace.h"

/* Exceptions to the rows: flows on rows that moved, each with the node that holds it. They
 * are learned from notices (exception_notice.h). docs/design.md has the rules.
 */

/* For so long after a row moved, a datagram may belong to a flow that the new primary does
 * not know: the timeout of such a flow, and the time until all nodes have the rows.
 */
#define ROW_MOVED_SECONDS 240

static __always_inline struct exception *exception_find(const struct flow *flow)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		return bpf_map_lookup_elem(&exceptions4, &key);
	}

	struct connection_key6 key = connection_key6(flow);

	return bpf_map_lookup_elem(&exceptions6, &key);
}

static __always_inline void exception_delete(const struct flow *flow)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		map_delete(&exceptions4, &key);
		return;
	}

	struct connection_key6 key = connection_key6(flow);

	map_delete(&exceptions6, &key);
}

static __always_inline void exception_put(const struct flow *flow,
					  const struct exception *exception)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		map_update(&exceptions4, &key, exception, BPF_ANY);
		return;
	}

	struct connection_key6 key = connection_key6(flow);

	map_update(&exceptions6, &key, exception, BPF_ANY);
}

/* Notes that the holder has the flow, not its row's primary. */
static __always_inline void exception_learn(const struct flow *flow, __u32 index, __u32 holder)
{
	struct exception exception = { .node = holder, .seen = clock_now() };
	struct row_mark *mark = bpf_map_lookup_elem(&row_marks, &index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!mark || !row || tracing)
		return;
	exception_put(flow, &exception);
	mark->excepted = mark_now();
	__sync_fetch_and_or(&row->path, ROW_MARKED);
	count_event(EVENT_EXCEPTION_LEARNED);
}

/* The node that holds the flow by an exception, or zero. */
static __always_inline __u32 exception_holder(const struct packet *packet, __u32 self,
					      struct row_mark *mark)
{
	struct exception *exception = exception_find(&packet->flow);
	__u32 idle = idle_seconds(packet->flow.protocol == IPPROTO_TCP ? FLOW_ESTABLISHED :
									 FLOW_DATAGRAMS);

	if (!exception)
		return 0;
	if (clock_passed(exception->seen, idle) ||
	    exception->node == path_node(packet->path, PATH_CHOOSER) ||
	    (exception->node != self && !node_is_known(exception->node))) {
		exception_delete(&packet->flow);
		return 0;
	}
	if (!tracing && clock_passed(exception->seen, REFRESH_SECONDS)) {
		exception->seen = clock_now();
		mark->excepted = mark_now();
	}
	count_event(EVENT_EXCEPTION_USED);
	return exception->node;
}

/* The node for a packet on a marked row. The packet has the path of the row. */
__noinline int marked_node(struct packet *packet, const struct self *self, __u32 index)
{
	struct row_mark *mark = bpf_map_lookup_elem(&row_marks, &index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);
	int excepted, moved;
	__u32 holder;

	if (!packet || !self || !mark || !row)
		return 0;
	excepted = mark_is_young(mark->excepted, idle_seconds(FLOW_ESTABLISHED));
	moved = mark_is_young(mark->moved, ROW_MOVED_SECONDS);
	/* A mark set by another CPU meanwhile is lost. The next exception sets it again. */
	if (!excepted && !moved && !tracing)
		__sync_fetch_and_and(&row->path, ~ROW_MARKED);
	if (excepted) {
		holder = exception_holder(packet, self->id, mark);
		if (holder) {
			trace_step(TRACE_EXCEPTION);
			packet->path |= PATH_EXCEPTION | PATH_WALK;
			return holder;
		}
	}
	if (moved)
		packet->path |= PATH_WALK;
	return path_node(packet->path, PATH_CHOOSER);
}
