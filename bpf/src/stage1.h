/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "encap.h"
#include "hash.h"
#include "ranges.h"
#include "stage2.h"

/* Stage 1: the node that serves a flow, the same wherever the router sends it. */

static __always_inline __u32 row_index(const struct frontend *frontend, __u32 hash)
{
	return frontend->table * ROWS + (hash >> ROW_SHIFT);
}

/* The way of a packet that this node sends, or keeps, by a row. */
static __always_inline __u64 way_by_row(__u64 row, const struct self *self)
{
	return (row & ROW_WAY) | (__u64)self->id << WAY_ORIGIN;
}

/* The way of a packet for which this node chooses instead of the row's primary: that one
 * becomes the first of the chain.
 */
static __always_inline __u64 way_behind(__u64 row, const struct self *self)
{
	return (row >> NODE_ID_BITS & WAY_CHAIN) | (__u64)self->id << WAY_ORIGIN |
	       (__u64)self->id << WAY_CHOOSER;
}

static __always_inline int stage1(struct packet *packet, const struct self *self,
				  const struct frontend *frontend)
{
	__u32 index = row_index(frontend, packet->node_hash);
	struct row *row;
	__u32 primary;

	if (!frontend->table)
		return drop(DROP_NO_ENDPOINT);
	row = bpf_map_lookup_elem(&rows, &index);
	if (!row)
		return drop(DROP_ROW_EMPTY);
	trace_row(index, row);
	packet->way = way_by_row(row->way, self);
	primary = way_node(packet->way, WAY_CHOOSER);
	if (!primary)
		return drop(DROP_ROW_EMPTY);
	if (primary == self->id)
		return serve_here();
	return send_to(primary);
}

/* A Local frontend with a table: others on its VIP have nodes announce it that have no
 * endpoint of this one. Where there is none, and the flow is not known, stage 1 finds a
 * node that has one. Else the flow is served here, but a packet of an unknown connection
 * first asks the nodes to which stage 1 would have sent it, or did, before this one had an
 * endpoint.
 */
__noinline int stage1_local(struct packet *packet, const struct self *self,
			    const struct frontend *frontend)
{
	enum table table;
	struct row *row;
	__u32 index;

	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	if (!frontend->endpoints && !connection_find(&packet->flow, &table))
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
	if (verdict == VERDICT_SERVE)
		verdict = stage2(ctx, packet, self, frontend);
	if (verdict >= VERDICT_SEND)
		verdict = encapsulate(ctx, packet, self, verdict - VERDICT_SEND);
	if (verdict >= VERDICT_DROPPED)
		return dropped(ctx, packet, verdict - VERDICT_DROPPED);
	return verdict;
}
