/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "chance.h"
#include "encap.h"
#include "hash.h"
#include "ranges.h"
#include "stage2.h"

/* Stage 1: the node that serves a flow, the same wherever the router sends it. */

static __always_inline int send_or_serve(const struct self *self, __u32 node)
{
	if (!node)
		return drop(DROP_ROW_EMPTY);
	return node == self->id ? serve_here() : send_to(node);
}

static __always_inline int stage1(struct packet *packet, const struct self *self,
				  const struct frontend *frontend)
{
	__u32 index = row_index(frontend, packet->node_hash);
	struct row *row;

	if (!frontend->table)
		return drop(DROP_NO_ENDPOINT);
	row = bpf_map_lookup_elem(&rows, &index);
	if (!row)
		return drop(DROP_ROW_EMPTY);
	trace_row(index, row);
	packet->way = way_by_row(row->way, self);
	if (row->way & ROW_MARKED)
		return send_or_serve(self, marked_node(packet, self, index));
	return send_or_serve(self, way_node(packet->way, WAY_CHOOSER));
}

/* Whether an endpoint of this node has the flow, and lives. */
static __always_inline int has_endpoint(const struct flow *flow)
{
	enum table table;
	struct connection *connection = connection_find(flow, &table);

	return connection && endpoint_of(connection);
}

/* A Local frontend with a table: others on its VIP have nodes announce it that have no
 * endpoint of this one. Where there is none, and none has the flow, stage 1 finds a
 * node that has one. Else the flow is served here, but a packet of an unknown connection
 * first asks the nodes to which stage 1 would have sent it, or did, before this one had an
 * endpoint.
 */
__noinline int stage1_local(struct packet *packet, const struct self *self,
			    const struct frontend *frontend)
{
	struct row *row;
	__u32 index;

	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	if (!frontend->endpoints && !has_endpoint(&packet->flow))
		return stage1(packet, self, frontend);
	index = row_index(frontend, packet->node_hash);
	row = bpf_map_lookup_elem(&rows, &index);
	if (row)
		packet->way = way_behind(row->way, self);
	return serve_here();
}

/* A packet for a frontend, as a router handed it to this node. Verified on its own. */
__noinline int from_router(struct packet *packet, const struct self *self,
			   const struct frontend *frontend)
{
	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	packet->frontend = frontend->id;
	trace_frontend(frontend);
	count_packet(frontend->id, packet->length);
	if (!source_allowed(packet, frontend))
		return drop(DROP_SOURCE_RANGE);
	hash_flow(packet, frontend);
	if (frontend->flags & FRONTEND_LOCAL) {
		if (frontend->table)
			return stage1_local(packet, self, frontend);
		return serve_here();
	}
	return stage1(packet, self, frontend);
}

/* Turns what the steps return into a verdict of XDP. */
static __always_inline int finish(struct xdp_md *ctx, struct packet *packet,
				  const struct self *self, const struct frontend *frontend,
				  int verdict)
{
	if (verdict == VERDICT_SERVE && (packet->way & WAY_FINAL) == WAY_HELD) {
		int node = exception_told(packet, self, frontend);

		if (!node)
			verdict = drop(DROP_TUNNEL_EXCEPTION);
		else if (node != self->id)
			verdict = send_to(node);
	}
	if (verdict == VERDICT_SERVE)
		verdict = stage2(ctx, packet, self, frontend);
	if (verdict >= VERDICT_SEND)
		verdict = encapsulate(ctx, packet, self, verdict - VERDICT_SEND);
	if (verdict >= VERDICT_DROPPED)
		return dropped(ctx, packet, verdict - VERDICT_DROPPED);
	return verdict;
}
