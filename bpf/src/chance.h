/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "exception.h"
#include "proof.h"
#include "settings.h"
#include "way.h"
#include "zone.h"

/* Second chance: who is asked for a flow that a node does not know, and who is told that
 * one does. docs/design.md has the rules and why no packet circles.
 */

static __always_inline __u32 row_index(const struct frontend *frontend, __u32 hash)
{
	return frontend->table * ROWS + (hash >> ROW_SHIFT);
}

/* Where the packet's chain is a guess and this node has a history, its own is better. */
static __always_inline void way_improve(struct packet *packet, const struct self *self,
					const struct frontend *frontend)
{
	struct row *row;
	__u32 table;

	if (!(packet->way & WAY_RANKED))
		return;
	table = zone_table(packet, self, frontend);
	row = table ? row_of(table, packet->node_hash) : NULL;
	if (row && row->way & ROW_HISTORY)
		packet->way = (packet->way & ~(WAY_CHAIN | WAY_RANKED)) | (row->way & WAY_CHAIN);
}

/* The next one of the chain that is another node; zero where nobody is left. The chain only
 * gets shorter.
 */
static __always_inline __u32 chain_next(struct packet *packet, __u32 self)
{
#pragma unroll
	for (int i = 0; i < CHAIN_LENGTH; i++) {
		__u32 next = way_node(packet->way, WAY_NEXT);

		packet->way = way_advance(packet->way);
		if (next && next != self && node_is_known(next)) {
			trace_step(TRACE_SECOND_CHANCE);
			count_event(EVENT_SECOND_CHANCE);
			return next;
		}
	}
	return 0;
}

/* The way's chooser, if it is another node; else zero. */
static __always_inline __u32 other_chooser(const struct packet *packet, __u32 self)
{
	__u32 chooser = way_node(packet->way, WAY_CHOOSER);

	return chooser != self && node_is_known(chooser) ? chooser : 0;
}

static __always_inline __u32 returned(__u32 chooser)
{
	trace_step(TRACE_RETURNED);
	count_event(EVENT_SECOND_CHANCE_RETURNED);
	return chooser;
}

/* The node that the packet goes to by the table of the next zone; zero means that nobody is
 * left.
 */
__noinline int next_zone(struct packet *packet, const struct self *self,
			 const struct frontend *frontend)
{
	__u32 next;

	if (!packet || !self || !frontend)
		return 0;
	for (int i = 0; i <= ZONES; i++) {
		if (!way_next_zone(packet, self, frontend))
			return 0;
		next = other_chooser(packet, self->id);
		if (next && packet->zones_on == ZONES)
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

/* The node to ask next; zero means that nobody is left, and this node may choose. The end of
 * the chain leads back to the primary of the row, and from there to the other zones, if the
 * frontend has tables of them; the last of all is the primary by the origin's own
 * table, which chooses: so the packet of a flow whose state was lost goes where the flow
 * went before.
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

/* The packet was sent here by an exception, but the flow is not here: its origin shall
 * forget the exception. Returns the node to send to, or zero.
 */
static __always_inline __u32 exception_release(struct packet *packet, __u32 self)
{
	__u32 origin = way_node(packet->way, WAY_ORIGIN);
	__u32 chooser = way_node(packet->way, WAY_CHOOSER);

	packet->way &= ~WAY_TOLD;
	packet->zones_on = 0;
	if (origin == self) {
		exception_delete(&packet->flow);
		return node_is_known(chooser) ? chooser : 0;
	}
	if (!node_is_known(origin))
		return 0;
	packet->way = way_with(packet->way, WAY_CHOOSER, 0) | WAY_HELD;
	return origin;
}

/* The node that shall have a packet of a flow that this one does not know, or that is over
 * here and begins anew. Zero means that this one shall choose.
 */
__noinline int whom_to_ask(struct packet *packet, const struct self *self,
			   const struct frontend *frontend)
{
	__u32 chooser, next;

	if (!packet || !self || !frontend)
		return 0;
	if ((packet->way & WAY_FINAL) == WAY_TOLD) {
		next = exception_release(packet, self->id);
		if (next)
			return next;
	}
	if (is_midstream(packet) ||
	    (packet->way & WAY_ASK && packet->flow.protocol == IPPROTO_UDP)) {
		way_improve(packet, self, frontend);
		return second_chance(packet, self, frontend);
	}
	/* New flows are the primary's, wherever an exception has led the packet. */
	chooser = way_node(packet->way, WAY_CHOOSER);
	return chooser != self->id && packet->way & WAY_TOLD && node_is_known(chooser) ? chooser : 0;
}

/* Whether the packet came for a flow that this node holds not because its origin knows that,
 * but because others were asked.
 */
static __always_inline int was_asked(const struct packet *packet, const struct self *self)
{
	__u32 origin = way_node(packet->way, WAY_ORIGIN);

	if (!origin || packet->way & WAY_TOLD)
		return 0;
	return packet->zones_on || way_node(packet->way, WAY_CHOOSER) != self->id ||
	       (packet->sender && packet->sender != origin);
}

/* Tells the origin of the packet that this node holds the flow, by sending the packet back
 * to it. Returns the origin; zero where it is this node, or unknown.
 */
__noinline int tell_origin(struct packet *packet, const struct self *self,
			   const struct frontend *frontend)
{
	__u32 origin;

	if (!packet || !self || !frontend || frontend->flags & FRONTEND_LOCAL)
		return 0;
	origin = way_node(packet->way, WAY_ORIGIN);
	if (origin == self->id) {
		if (packet->zones_on || way_node(packet->way, WAY_CHOOSER) != self->id)
			exception_learn(&packet->flow, row_index(frontend, packet->node_hash),
					self->id);
		return 0;
	}
	if (!node_is_known(origin))
		return 0;
	packet->way = way_with(packet->way, WAY_CHOOSER, self->id) | WAY_HELD;
	packet->zones_on = 0;
	return origin;
}

/* A packet that came back to its origin from the node that holds its flow, or, where the
 * chooser is zero, from one that was thought to. Only that node itself is believed.
 * Returns the node to send it to, or zero.
 */
__noinline int exception_told(struct packet *packet, const struct self *self,
			      const struct frontend *frontend)
{
	struct exception *exception;
	__u32 holder, index;
	struct row *row;

	if (!packet || !self || !frontend)
		return 0;
	holder = way_node(packet->way, WAY_CHOOSER);
	index = row_index(frontend, packet->node_hash);
	row = bpf_map_lookup_elem(&rows, &index);
	if (way_node(packet->way, WAY_ORIGIN) != self->id || (holder && holder != packet->sender) ||
	    !frontend->table || frontend->flags & FRONTEND_LOCAL || !row)
		return 0;
	packet->way = way_by_row(row->way, self) | WAY_ASK;
	packet->zones_on = 0;
	if (!holder) {
		exception = exception_find(&packet->flow);
		if (exception && exception->node == packet->sender)
			exception_delete(&packet->flow);
		return way_node(packet->way, WAY_CHOOSER);
	}
	if (holder == way_node(packet->way, WAY_CHOOSER))
		exception_delete(&packet->flow);
	else
		exception_learn(&packet->flow, index, holder);
	packet->way |= WAY_FINAL;
	return holder;
}
