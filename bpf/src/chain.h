/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "agent_heartbeat.h"
#include "count.h"
#include "override.h"
#include "redirect.h"
#include "node.h"
#include "path.h"
#include "validation.h"
#include "row.h"
#include "lookup_limit.h"
#include "zone.h"

/* Lookup forwarding: packets of unknown flows visit the nodes that may have the flow, along the
 * row's chain (docs/design.md).
 */

/* Result of forward_lookup if the rate limit forbids forwarding. */
#define LOOKUP_LIMITED -1

enum chain_state {
	/* The row never moved. Nodes by rank are not a history. */
	CHAIN_UNCHANGED,
	/* All nodes of the chain have been visited. */
	CHAIN_EXHAUSTED,
	/* Flows have overrides here or have expired, unless they changed their ingress node. */
	CHAIN_OLD,
	/* A flow may have moved since its last packet. */
	CHAIN_RECENT,
};

static __always_inline void path_add_history(struct packet *packet, const struct row *row)
{
	if (packet->path.word & PATH_RANKED && row->path & ROW_HISTORY && !packet->no_forward)
		packet->path =
			path_with_chain(path_without_chain(packet->path), row_path(row->path));
}

/* Reports whether this or the ingress node does not know yet that the row has moved. */
static __always_inline int views_differ(struct path path, __u64 row)
{
	if (path_node(path, PATH_CHOOSER) != row_primary(row))
		return 1;
	return path_has_chain(path) && !(path.word & PATH_RANKED) && row & ROW_HISTORY &&
	       path_node(path, PATH_NEXT) != path_node(row_path(row), PATH_NEXT);
}

/* Rates the chain of a packet whose chooser is this node. Removes chains by rank, except behind a
 * former owner, because those nodes may be former owners from before this node booted.
 */
__noinline int chain_state(struct packet *packet, const struct self *self,
			   const struct frontend *frontend)
{
	struct row_group *group;
	int is_recent;
	struct row *row;
	__u32 table, index, moved;

	if (!packet || !self || !frontend)
		return CHAIN_UNCHANGED;
	table = zone_table(packet, self, frontend);
	index = row_index(table, packet->node_hash);
	row = bpf_map_lookup_elem(&rows, &index);
	group = row_group_of(index);
	if (!table || !row || !group) {
		packet->path = path_without_chain(packet->path);
		return CHAIN_UNCHANGED;
	}
	moved = group->moved;
	is_recent = stamp_is_recent(moved, idle_seconds(FLOW_ESTABLISHED));
	/* Clears timestamps before the clock wraps. Another row of the group may move meanwhile. */
	if (moved && !is_recent && !tracing)
		__sync_val_compare_and_swap(&group->moved, moved, 0);
	if (frontend->flags & FRONTEND_LOCAL && !packet->sender) {
		packet->path = path_with_chain(packet->path, chain_behind(row->path, self));
		if (is_recent)
			return CHAIN_RECENT;
		if (row->path & ROW_HISTORY)
			return CHAIN_OLD;
		if (row_primary(row->path) != self->id) {
			packet->path = path_cut(packet->path, 1);
			return CHAIN_OLD;
		}
		packet->path = path_cut(packet->path, 0);
		return CHAIN_UNCHANGED;
	}
	path_add_history(packet, row);
	/* The ingress node may know of a change that this node does not know, or the reverse. */
	if (packet->path.word & PATH_RANKED && row_primary(row->path) != self->id &&
	    !packet->no_forward)
		packet->path = path_with_chain(path_without_chain(packet->path),
					       chain_behind(row->path, self));
	if (!path_has_chain(packet->path))
		return row->path & ROW_HISTORY ? CHAIN_EXHAUSTED : CHAIN_UNCHANGED;
	if (views_differ(packet->path, row->path))
		return CHAIN_RECENT;
	if (is_recent)
		return CHAIN_RECENT;
	if (!(packet->path.word & PATH_RANKED))
		return CHAIN_OLD;
	packet->path = path_without_chain(packet->path);
	return CHAIN_UNCHANGED;
}

/* Returns the next other node and removes it from the path; 0 at the end of the chain. */
static __always_inline __u32 chain_next(struct packet *packet, __u32 self)
{
#pragma unroll
	for (int i = 0; i < CHAIN_LENGTH; i++) {
		__u32 next = path_node(packet->path, PATH_NEXT);

		packet->path = path_advance(packet->path);
		if (next && next != self && node_is_known(next)) {
			trace_step(TRACE_LOOKUP_FORWARDED);
			count_event(EVENT_LOOKUP_FORWARDED);
			return next;
		}
	}
	return 0;
}

static __always_inline __u32 other_chooser(const struct packet *packet, __u32 self)
{
	__u32 chooser = path_node(packet->path, PATH_CHOOSER);

	return chooser != self && node_is_known(chooser) ? chooser : 0;
}

static __always_inline __u32 return_to_primary(__u32 chooser)
{
	trace_step(TRACE_LOOKUP_RETURNED);
	count_event(EVENT_LOOKUP_RETURNED);
	return chooser;
}

__noinline int next_zone(struct packet *packet, const struct self *self,
			 const struct frontend *frontend)
{
	__u32 next;

	if (!packet || !self || !frontend)
		return 0;
	/* A 32-bit counter is spilled and loses its bounds in the verifier. */
	for (__u64 i = 0; i <= ZONES; i++) {
		if (!path_next_zone(packet, self, frontend))
			return 0;
		next = other_chooser(packet, self->id);
		if (next && packet->zone_steps == ZONES)
			return return_to_primary(next);
		if (next) {
			trace_step(TRACE_OTHER_ZONE);
			count_event(EVENT_LOOKUP_OTHER_ZONE);
			return next;
		}
		chain_state(packet, self, frontend);
		next = chain_next(packet, self->id);
		if (next)
			return next;
	}
	return 0;
}

/* Reports whether only the ingress node has seen the packet. A chain with that node is used up. */
static __always_inline int is_first_lookup(const struct packet *packet)
{
	return !packet->zone_steps &&
	       (!packet->sender || packet->sender == path_node(packet->path, PATH_INGRESS));
}

static __always_inline __u32 chain_follow(struct packet *packet, const struct self *self,
					  const struct frontend *frontend)
{
	__u32 table = zone_table(packet, self, frontend);
	struct row *row = table ? row_of(table, packet->node_hash) : NULL;

	if (row)
		path_add_history(packet, row);
	return chain_next(packet, self->id);
}

/* The first chooser applies the rate limit. */
static __always_inline int zone_lookup_allowed(const struct packet *packet,
					       const struct frontend *frontend, int is_first)
{
	__u32 id = frontend->id, tables = is_switched(frontend) ? 2 : 0;
	struct zones *zones;

	if (packet->zone_steps)
		return 1;
	zones = bpf_map_lookup_elem(&zone_tables, &id);
	for (int i = 0; zones && i < ZONES; i++)
		tables += !!zones->table[i];
	return tables < 2 || lookup_allowed(&packet->flow, ZONE_SHARE * tables, is_first);
}

/* Returns the next node, 0 if this node may choose, or LOOKUP_LIMITED. In order: the owner
 * of a Local frontend's flow, the chain, the row's primary, other zones, and the primary in the
 * ingress node's zone, which chooses, so that a lost flow is mapped to the same node as before.
 */
__noinline int forward_lookup(struct packet *packet, const struct self *self,
			      const struct frontend *frontend)
{
	int is_first, state, next;
	__u32 chooser;

	if (!packet || !self || !frontend)
		return 0;
	next = local_owner(packet, self, frontend);
	if (next)
		return next;
	chooser = other_chooser(packet, self->id);
	if (chooser) {
		next = chain_follow(packet, self, frontend);
		return next ? next : (int)return_to_primary(chooser);
	}
	is_first = is_first_lookup(packet);
	state = chain_state(packet, self, frontend);
	if (is_first && state >= CHAIN_OLD &&
	    !lookup_allowed(&packet->flow, state == CHAIN_RECENT ? RECENT_SHARE : OLD_SHARE, 1))
		return LOOKUP_LIMITED;
	next = chain_next(packet, self->id);
	if (next)
		return next;
	if (!zone_lookup_allowed(packet, frontend, is_first && state == CHAIN_UNCHANGED))
		return LOOKUP_LIMITED;
	next = next_zone(packet, self, frontend);
	/* Delegated packets are not counted, because they are not forwarded further. */
	if (packet->no_forward && !has_steps(frontend))
		return next;
	if (!next && (!is_first || (packet->sender && state == CHAIN_EXHAUSTED)))
		record_miss(&packet->flow, packet->zone_steps);
	return next;
}

/* Reports whether a node with a silent agent has forwarded the packet: see delegate. */
static __always_inline int is_delegated(const struct packet *packet)
{
	return packet->no_forward && packet->path.word & PATH_RANKED;
}

/* Returns the row's owner, as last hop, if only the sender knows of an endpoint here; else 0.
 * Mid-stream packets follow the SYN of a handed-on flow.
 */
__noinline int forward_to_primary(struct packet *packet, const struct self *self,
				  const struct frontend *frontend)
{
	__u32 table, node;
	struct row *row;

	if (!packet || !self || !frontend || !packet->sender)
		return 0;
	if (!is_delegated(packet) && (packet->no_forward || is_midstream(packet)))
		return 0;
	table = zone_table(packet, self, frontend);
	row = table ? row_of(table, packet->node_hash) : NULL;
	node = row ? row_primary(row->path) : 0;
	if (node == self->id || !node_is_known(node))
		return 0;
	packet->path = path_to(packet->path, node);
	packet->no_forward = 1;
	trace_step(TRACE_LOOKUP_FORWARDED);
	count_event(EVENT_LOOKUP_FORWARDED);
	return node;
}

/* Returns the first known node. The first formers nodes may have no endpoint, so they come last. */
static __always_inline __u32 chain_chooser(struct path path, int formers)
{
	__u32 next, found = 0;
	int place = -1;

#pragma unroll
	for (int i = 0; i < CHAIN_LENGTH; i++) {
		next = path_node(path, PATH_NEXT);
		path = path_advance(path);
		if (!next || !node_is_known(next))
			continue;
		if (place < 0 || (place < formers && i >= formers)) {
			found = next;
			place = i;
		}
	}
	return found;
}

/* Returns the node that chooses while this node's agent is down and its endpoints are stale, or 0.
 * That node forwards only as forward_to_primary does, i.e. to at most one more. Mid-stream packets
 * are also forwarded for AGENT_RETURN_NS after the agent's return.
 */
__noinline int delegate(struct packet *packet, const struct self *self,
			const struct frontend *frontend)
{
	__u32 table, index, node = 0;
	struct row_group *group;
	enum agent_state agent;
	struct row *row;

	if (!packet || !self || !frontend || packet->no_forward)
		return 0;
	agent = agent_state();
	if (agent == AGENT_WORKS || (agent == AGENT_RETURNED && !is_midstream(packet)))
		return 0;
	/* Mid-stream packets have been forwarded to the other rows before they return.
	 */
	if (has_steps(frontend))
		return 0;
	table = zone_table(packet, self, frontend);
	index = row_index(table, packet->node_hash);
	row = table ? bpf_map_lookup_elem(&rows, &index) : NULL;
	if (row)
		node = chain_chooser(chain_behind(row->path, self),
				     row_primary(row->path) == self->id ? row_history(row->path) :
									  0);
	if (!node)
		return 0;
	packet->path = path_to(packet->path, node);
	packet->path.word &= ~PATH_LOOKUP;
	if (packet->kind == PACKET_TRANSPORT)
		packet->path.word |= PATH_RANKED;
	if (!is_midstream(packet)) {
		/* The flow may lose its override, so the chain must be queried as if the row had
		 * moved.
		 */
		group = row_group_of(index);
		if (group && !tracing)
			group->moved = stamp_now();
	}
	packet->no_forward = 1;
	trace_step(TRACE_DELEGATED);
	count_event(EVENT_AGENT_SILENT);
	return node;
}

/* Returns the next node, 0 if this node chooses, or LOOKUP_LIMITED. */
__noinline int chain_lookup(struct packet *packet, const struct self *self,
			    const struct frontend *frontend)
{
	__u32 chooser, next;

	if (!packet || !self || !frontend)
		return 0;
	if (path_role(packet->path) == PATH_OVERRIDE) {
		next = override_reject(packet, self->id);
		if (next)
			return next;
	}
	if (is_midstream(packet) ||
	    (packet->path.word & PATH_LOOKUP && packet->flow.protocol == IPPROTO_UDP))
		return forward_lookup(packet, self, frontend);
	next = packet->sender ? 0 : local_owner(packet, self, frontend);
	if (next)
		return next;
	/* New flows belong to the primary, even if an override led the packet elsewhere. */
	chooser = path_node(packet->path, PATH_CHOOSER);
	if (chooser == self->id || !path_is_straight(packet->path))
		return 0;
	return node_is_known(chooser) ? chooser : 0;
}
