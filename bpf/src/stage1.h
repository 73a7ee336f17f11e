/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "endpoint.h"
#include "override.h"
#include "hash.h"
#include "martian.h"
#include "row.h"
#include "source_ranges.h"
#include "verdict.h"

/* Stage 1 finds the node that serves a flow, the same one on every ingress node. */

/* Leading nodes to avoid: former primaries, if the packet may begin a flow. */
static __always_inline int chain_begins(const struct packet *packet, __u64 row)
{
	return is_midstream(packet) || packet->path.word & PATH_LOOKUP ? 0 : row_history(row);
}

/* Replaces a chooser that is down by the first node of the chain that is up: by rank the next
 * primary, else a former primary, which has flows. Global, so verified once.
 */
__noinline int substitute_primary(struct packet *packet, const struct self *self, __u64 row)
{
	int begins, place = -1;
	struct path path, found;

	if (!packet || !self)
		return 0;
	begins = chain_begins(packet, row);
	path = found = packet->path;
#pragma unroll
	for (int i = 0; i < CHAIN_LENGTH; i++) {
		__u32 next = path_node(path, PATH_NEXT);

		path = path_advance(path);
		if (next != self->id && !node_is_known(next))
			continue;
		if (place < 0 || (place < begins && i >= begins)) {
			found = path_with(path, PATH_CHOOSER, next);
			place = i;
		}
	}
	if (place < 0)
		return path_node(packet->path, PATH_CHOOSER);
	packet->path = found;
	count_event(EVENT_PRIMARY_DOWN);
	return path_node(found, PATH_CHOOSER);
}

static __always_inline int stage1(struct packet *packet, const struct self *self,
				  const struct frontend *frontend)
{
	__u32 index = row_index(frontend->table, packet->node_hash), node;
	struct row *row;

	if (!frontend->table)
		return drop(DROP_NO_ENDPOINT);
	row = bpf_map_lookup_elem(&rows, &index);
	if (!row)
		return drop(DROP_NO_NODE);
	trace_row(index - row_first(frontend->table), row);
	packet->path = path_by_row(row->path, self);
	node = path_node(packet->path, PATH_CHOOSER);
	if (row->path & ROW_FLAGGED)
		node = flagged_node(packet, self, index);
	if (!node)
		return drop(DROP_NO_NODE);
	if (node != self->id && node_is_down(node))
		node = substitute_primary(packet, self, row->path);
	return node == self->id ? serve_here() : send_to(node);
}

/* Reports whether the flow has an existing endpoint on this node. */
static __always_inline int has_endpoint(const struct flow *flow)
{
	enum table table;
	struct connection *connection = connection_find(flow, &table);

	return connection && endpoint_of(connection);
}

/* Reports whether this node serves a packet of a Local frontend. Nodes with endpoints do, and look
 * up the row only to find the owner of an unknown connection (chain.h). Nodes without
 * endpoints may receive packets for another frontend of the VIP or before a router converges. They
 * forward them in stage 1, unless an endpoint on this node has the flow.
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

/* Processes a packet of a frontend from a router. Global, so verified once. */
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
