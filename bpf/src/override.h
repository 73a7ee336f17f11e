/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "count.h"
#include "override_table.h"
#include "maps.h"
#include "node.h"
#include "path.h"
#include "row.h"
#include "settings.h"
#include "trace.h"
#include "zone.h"

/* Overrides: flows of moved rows, and the nodes that own them. See docs/design.md. */

/* Idle timeout of UDP flows plus propagation of rows, in seconds. */
#define ROW_MOVED_SECONDS 240

static __always_inline void override_add(const struct flow *flow, __u32 index, __u32 owner)
{
	struct row_group *group = row_group_of(index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);

	if (!group || !row || tracing)
		return;
	if (override_insert(flow_fingerprint(flow), override_about(index, owner, flow->protocol)))
		return;
	row_group_overridden(group);
	__sync_fetch_and_or(&row->path, ROW_OVERRIDDEN);
	count_event(EVENT_OVERRIDE_ADDED);
}

static __always_inline void override_withdraw(const struct flow *flow, __u32 node)
{
	__u64 fingerprint = flow_fingerprint(flow), *found = override_find(fingerprint);

	if (found && override_node(*found) == node)
		override_delete(fingerprint);
}

static __always_inline __u32 override_owner(const struct packet *packet, __u32 self, __u32 index)
{
	__u64 fingerprint = flow_fingerprint(&packet->flow), *found = override_find(fingerprint),
	      value;
	__u32 node;

	if (!found)
		return 0;
	value = *found;
	node = override_node(value);
	if (override_expired(value) || node == path_node(packet->path, PATH_CHOOSER) ||
	    (node != self && !node_is_known(node))) {
		override_delete(fingerprint);
		return 0;
	}
	override_renew(found, value, index);
	count_event(EVENT_OVERRIDE_USED);
	return node;
}

/* Returns the owner of a Local frontend's flow by its override, or 0. The ingress node
 * uses the override unless it was just rejected. A current or former primary forwards the packet
 * to the owner once; the owner forwards to no other node.
 */
__noinline int local_owner(struct packet *packet, const struct self *self,
			   const struct frontend *frontend)
{
	__u64 fingerprint, *found, value;
	__u32 node;

	if (!packet || !self || !frontend)
		return 0;
	if (!(frontend->flags & FRONTEND_LOCAL) && !(packet->sender && is_switched(frontend)))
		return 0;
	if (packet->sender ? packet->no_forward : packet->path.word & PATH_LOOKUP)
		return 0;
	fingerprint = flow_fingerprint(&packet->flow);
	found = override_find(fingerprint);
	if (!found)
		return 0;
	value = *found;
	node = override_node(value);
	if (override_expired(value) || !node_is_known(node) || node == self->id)
		return 0;
	/* With policy Local, the ingress node has looked up the flow. */
	if (frontend->flags & FRONTEND_LOCAL && node == path_node(packet->path, PATH_INGRESS))
		return 0;
	override_renew(found, value, row_index(frontend->table, packet->node_hash));
	trace_step(TRACE_OVERRIDE);
	count_event(EVENT_OVERRIDE_USED);
	if (packet->sender)
		packet->no_forward = 1;
	else
		packet->path = path_with_lookup(path_as(packet->path, PATH_OVERRIDE));
	return node;
}

/* Restores the flag if the row moves concurrently: row_write sets the time first. */
static __always_inline void row_settled(struct row *row, const struct row_group *group)
{
	if (tracing)
		return;
	if (__sync_fetch_and_and(&row->path, ~ROW_MOVED) & ROW_MOVED &&
	    stamp_is_recent(group->moved, ROW_MOVED_SECONDS))
		__sync_fetch_and_or(&row->path, ROW_MOVED);
}

/* Returns the node for a packet on a flagged row. The packet has the row's path. */
__noinline int flagged_node(struct packet *packet, const struct self *self, __u32 index)
{
	struct row_group *group = row_group_of(index);
	struct row *row = bpf_map_lookup_elem(&rows, &index);
	__u32 owner;
	int moved;

	if (!packet || !self || !group || !row)
		return 0;
	moved = stamp_is_recent(group->moved, ROW_MOVED_SECONDS);
	if (!moved && row->path & ROW_MOVED)
		row_settled(row, group);
	if (row->path & ROW_OVERRIDDEN) {
		owner = override_owner(packet, self->id, index);
		if (owner) {
			trace_step(TRACE_OVERRIDE);
			packet->path = path_with_lookup(path_as(packet->path, PATH_OVERRIDE));
			return owner;
		}
	}
	if (moved)
		packet->path = path_with_lookup(packet->path);
	return path_node(packet->path, PATH_CHOOSER);
}
