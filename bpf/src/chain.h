/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "exception.h"
#include "exception_notice.h"
#include "node.h"
#include "path.h"
#include "proof.h"
#include "row.h"
#include "zone.h"

/* The chain walk, or second chance: a packet of a flow that this node does not know goes on to
 * a node that may know it. docs/design.md has the rules and why no packet loops.
 */

/* A chain by rank is a guess. A history that this node has is better. */
static __always_inline void path_improve(struct packet *packet, const struct self *self,
					 const struct frontend *frontend)
{
	struct row *row;
	__u32 table;

	if (!(packet->path & PATH_RANKED))
		return;
	table = zone_table(packet, self, frontend);
	row = table ? row_of(table, packet->node_hash) : NULL;
	if (row && row->path & ROW_HISTORY)
		packet->path = (packet->path & ~(PATH_CHAIN | PATH_RANKED)) |
			       (row->path & PATH_CHAIN);
}

/* The next other node of the chain; zero at its end. The chain only gets shorter. */
static __always_inline __u32 chain_next(struct packet *packet, __u32 self)
{
#pragma unroll
	for (int i = 0; i < CHAIN_LENGTH; i++) {
		__u32 next = path_node(packet->path, PATH_NEXT);

		packet->path = path_advance(packet->path);
		if (next && next != self && node_is_known(next)) {
			trace_step(TRACE_SECOND_CHANCE);
			count_event(EVENT_SECOND_CHANCE);
			return next;
		}
	}
	return 0;
}

/* The path's chooser, if it is another node; else zero. */
static __always_inline __u32 other_chooser(const struct packet *packet, __u32 self)
{
	__u32 chooser = path_node(packet->path, PATH_CHOOSER);

	return chooser != self && node_is_known(chooser) ? chooser : 0;
}

static __always_inline __u32 returned(__u32 chooser)
{
	trace_step(TRACE_RETURNED);
	count_event(EVENT_SECOND_CHANCE_RETURNED);
	return chooser;
}

/* The node to ask by the table of the next zone; zero means that none is left. */
__noinline int next_zone(struct packet *packet, const struct self *self,
			 const struct frontend *frontend)
{
	__u32 next;

	if (!packet || !self || !frontend)
		return 0;
	for (int i = 0; i <= ZONES; i++) {
		if (!path_next_zone(packet, self, frontend))
			return 0;
		next = other_chooser(packet, self->id);
		if (next && packet->zone_steps == ZONES)
			return returned(next);
		if (next) {
			trace_step(TRACE_OTHER_ZONE);
			count_event(EVENT_OTHER_ZONE);
			return next;
		}
		next = chain_next(packet, self->id);
		if (next)
			return next;
	}
	return 0;
}

/* The node to ask next; zero means that none is left, and this node may choose. After the
 * chain comes the primary of the row, then the other zones that the frontend has tables for.
 * The last is the primary by the table of the ingress node's own zone. That one chooses, so
 * that a flow whose state was lost goes where it went before.
 */
static __always_inline __u32 second_chance(struct packet *packet, const struct self *self,
					   const struct frontend *frontend)
{
	__u32 next = chain_next(packet, self->id);

	if (next)
		return next;
	next = other_chooser(packet, self->id);
	return next ? returned(next) : next_zone(packet, self, frontend);
}

/* The node for a packet of a flow that is not known here, or is over here and begins again.
 * Zero means that this node chooses.
 */
__noinline int chain_walk(struct packet *packet, const struct self *self,
			  const struct frontend *frontend)
{
	__u32 chooser, next;

	if (!packet || !self || !frontend)
		return 0;
	if ((packet->path & PATH_FINAL) == PATH_EXCEPTION) {
		next = exception_reject(packet, self->id);
		if (next)
			return next;
	}
	if (is_midstream(packet) ||
	    (packet->path & PATH_WALK && packet->flow.protocol == IPPROTO_UDP)) {
		path_improve(packet, self, frontend);
		return second_chance(packet, self, frontend);
	}
	/* New flows belong to the primary, also where an exception led the packet elsewhere. */
	chooser = path_node(packet->path, PATH_CHOOSER);
	if (chooser == self->id || !(packet->path & PATH_EXCEPTION))
		return 0;
	return node_is_known(chooser) ? chooser : 0;
}
