/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "endpoint.h"
#include "exception.h"
#include "hash.h"
#include "martian.h"
#include "row.h"
#include "source_ranges.h"
#include "verdict.h"

/* Stage 1 finds the node that serves a flow: the same one on every ingress node. */

static __always_inline int send_or_serve(const struct self *self, __u32 node)
{
	if (!node)
		return drop(DROP_ROW_EMPTY);
	return node == self->id ? serve_here() : send_to(node);
}

static __always_inline int stage1(struct packet *packet, const struct self *self,
				  const struct frontend *frontend)
{
	__u32 index = row_index(frontend->table, packet->node_hash);
	struct row *row;

	if (!frontend->table)
		return drop(DROP_NO_ENDPOINT);
	row = bpf_map_lookup_elem(&rows, &index);
	if (!row)
		return drop(DROP_ROW_EMPTY);
	trace_row(index, row);
	packet->path = path_by_row(row->path, self);
	if (row->path & ROW_MARKED)
		return send_or_serve(self, marked_node(packet, self, index));
	return send_or_serve(self, path_node(packet->path, PATH_CHOOSER));
}

/* Reports whether an endpoint of this node has the flow, and still exists. */
static __always_inline int has_endpoint(const struct flow *flow)
{
	enum table table;
	struct connection *connection = connection_find(flow, &table);

	return connection && endpoint_of(connection);
}

/* Reports whether this node serves a packet of a Local frontend itself. One with endpoints does. It
 * looks the row up for a packet of an unknown connection alone, to ask whether another node holds
 * that (chain.h).
 *
 * A node without endpoints may get packets, too: for the sake of another frontend of the VIP, or
 * because a router does not know yet. Stage 1 finds a node with endpoints, unless an endpoint here
 * has the flow.
 */
__noinline int is_served_here(struct packet *packet, const struct self *self,
			      const struct frontend *frontend)
{
	if (!packet || !self || !frontend)
		return 0;
	if (!frontend->table)
		return 1;
	if (!frontend->endpoints && !has_endpoint(&packet->flow))
		return 0;
	packet->path = path_of_own(self);
	return 1;
}

/* A packet for a frontend, from a router. Verified on its own. */
__noinline int from_router(struct packet *packet, const struct self *self,
			   const struct frontend *frontend)
{
	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	packet->frontend = frontend->id;
	trace_frontend(frontend);
	count_packet(frontend->id, packet->length);
	if (may_be_martian(&packet->flow) && is_martian(self, &packet->flow))
		return drop(DROP_MARTIAN);
	if (!source_allowed(packet, frontend))
		return drop(DROP_SOURCE_RANGE);
	hash_flow(packet, frontend);
	if (frontend->flags & FRONTEND_LOCAL && is_served_here(packet, self, frontend))
		return serve_here();
	return stage1(packet, self, frontend);
}
