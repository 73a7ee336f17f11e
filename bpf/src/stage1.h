/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "encap.h"
#include "hash.h"
#include "ranges.h"
#include "stage2.h"

/* Stage 1: the node that serves a flow, the same wherever the router sends it. */
static __always_inline int stage1(struct xdp_md *ctx, struct packet *packet,
				  const struct self *self, const struct frontend *frontend)
{
	__u32 index = frontend->table * ROWS + (packet->node_hash >> ROW_SHIFT);
	struct row *row;

	if (!frontend->table)
		return drop(DROP_NO_ENDPOINT);
	row = bpf_map_lookup_elem(&rows, &index);
	if (!row || !row->primary)
		return drop(DROP_ROW_EMPTY);
	trace_row(index, row);
	packet->chain[0] = row->chain[0];
	packet->chain[1] = row->chain[1];
	packet->chain[2] = row->chain[2];
	if (row->primary == self->id)
		return stage2(ctx, packet, self, frontend);
	return encapsulate(ctx, packet, self, row->primary);
}

/* A Local frontend with a table: others on its VIP have nodes announce it that have no
 * endpoint of this one. Where there is none, and the flow is not known, stage 1 finds a
 * node that has one. Else the flow is served here, but a packet of an unknown connection
 * first asks the nodes to which stage 1 would have sent it, or did, before this one had an
 * endpoint.
 */
__noinline int stage1_local(struct xdp_md *ctx, struct packet *packet, const struct self *self,
			    const struct frontend *frontend)
{
	enum table table;
	struct row *row;
	__u32 index;

	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	if (!frontend->endpoints && !connection_find(&packet->flow, &table))
		return stage1(ctx, packet, self, frontend);
	index = frontend->table * ROWS + (packet->node_hash >> ROW_SHIFT);
	row = bpf_map_lookup_elem(&rows, &index);
	if (row) {
		packet->chain[0] = row->primary;
		packet->chain[1] = row->chain[0];
		packet->chain[2] = row->chain[1];
	}
	return stage2(ctx, packet, self, frontend);
}

/* A packet for a frontend, as a router handed it to this node. */
static __always_inline int from_router(struct xdp_md *ctx, struct packet *packet,
				       const struct self *self, const struct frontend *frontend)
{
	packet->frontend = frontend->id;
	trace_frontend(frontend);
	count_packet(frontend->id, packet->length);
	if (!source_allowed(packet, frontend))
		return drop(DROP_SOURCE_RANGE);
	hash_flow(packet, frontend);
	if (frontend->flags & FRONTEND_LOCAL) {
		if (frontend->table)
			return stage1_local(ctx, packet, self, frontend);
		return stage2(ctx, packet, self, frontend);
	}
	return stage1(ctx, packet, self, frontend);
}
