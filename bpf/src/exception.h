/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "conntrack.h"
#include "count.h"
#include "lifetime.h"
#include "maps.h"
#include "settings.h"
#include "trace.h"
#include "way.h"

/* What stage 1 knows beside the rows: of flows on rows that moved, the node that holds
 * them. docs/design.md has the rules.
 */

/* Within so long after a row moved, a datagram may belong to a flow that the new primary
 * does not know: as long as an idle flow of datagrams lives, and the time of a roll-out of
 * rows over the nodes.
 */
#define ROW_MOVED_SECONDS 240

static __always_inline int mark_is_young(__u32 ticks, __u32 seconds)
{
	return ticks && !clock_passed(ticks, seconds);
}

/* Zero means never. */
static __always_inline __u32 mark_now(void)
{
	return clock_now() ?: 1;
}

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

static __always_inline void exception_put(const struct flow *flow, const struct exception *exception)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		map_update(&exceptions4, &key, exception, BPF_ANY);
		return;
	}

	struct connection_key6 key = connection_key6(flow);

	map_update(&exceptions6, &key, exception, BPF_ANY);
}

/* Whether the node exists and has an address. */
static __always_inline int node_is_known(__u32 id)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	return node && (node->ipv4 || !address_is_zero(&node->ipv6));
}

/* The flow is not with its row's primary, but with the holder. */
static __always_inline void exception_learn(const struct flow *flow, __u32 index, __u32 holder)
{
	struct exception exception = { .node = holder, .seen = clock_now() };
	struct row_mark *mark = bpf_map_lookup_elem(&row_marks, &index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!mark || !row || tracing)
		return;
	exception_put(flow, &exception);
	mark->excepted = mark_now();
	__sync_fetch_and_or(&row->way, ROW_MARKED);
	count_event(EVENT_EXCEPTION_LEARNED);
}

/* The node that holds the flow against its row, or zero. */
static __always_inline __u32 exception_holder(const struct packet *packet, __u32 self,
					      struct row_mark *mark)
{
	struct exception *exception = exception_find(&packet->flow);
	__u32 idle = idle_seconds(packet->flow.protocol == IPPROTO_TCP ? FLOW_ESTABLISHED :
									 FLOW_DATAGRAMS);

	if (!exception)
		return 0;
	if (clock_passed(exception->seen, idle) ||
	    exception->node == way_node(packet->way, WAY_CHOOSER) ||
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

/* The node for a packet on a marked row, whose way is that of the row. */
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
	/* A mark that is set meanwhile is lost, and set again by the next exception. */
	if (!excepted && !moved && !tracing)
		__sync_fetch_and_and(&row->way, ~ROW_MARKED);
	if (excepted) {
		holder = exception_holder(packet, self->id, mark);
		if (holder) {
			trace_step(TRACE_EXCEPTION);
			packet->way |= WAY_TOLD | WAY_ASK;
			return holder;
		}
	}
	if (moved)
		packet->way |= WAY_ASK;
	return way_node(packet->way, WAY_CHOOSER);
}
