/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "exception.h"
#include "node.h"
#include "path.h"
#include "row.h"

/* Notices inform the ingress node whether a node holds a flow. A notice is the packet itself, sent
 * back to the ingress node, which adds or deletes an exception (exception.h) and forwards the
 * packet again.
 */

static __always_inline void zones_unasked(struct packet *packet)
{
	packet->zone_steps = 0;
	packet->asks_nobody = 0;
}

/* Rejects a wrong exception of the ingress node. Returns the next node, or 0. */
static __always_inline __u32 exception_reject(struct packet *packet, __u32 self)
{
	__u32 ingress = path_node(packet->path, PATH_INGRESS);
	__u32 chooser = path_node(packet->path, PATH_CHOOSER);

	packet->path = path_as(packet->path, PATH_PLAIN);
	zones_unasked(packet);
	if (ingress == self) {
		exception_forget(exception_print(&packet->flow));
		return node_is_known(chooser) ? chooser : 0;
	}
	if (!node_is_known(ingress))
		return 0;
	packet->path = path_as(path_with(packet->path, PATH_CHOOSER, 0), PATH_NOTICE);
	return ingress;
}

/* Reports whether the packet arrived by a chain walk, i.e. its ingress node has no exception. */
static __always_inline int was_walked_to(const struct packet *packet, const struct self *self)
{
	__u32 ingress = path_node(packet->path, PATH_INGRESS);

	if (!ingress || path_is_straight(packet->path))
		return 0;
	return packet->zone_steps || path_node(packet->path, PATH_CHOOSER) != self->id ||
	       (packet->sender && packet->sender != ingress);
}

/* Returns the ingress node if it needs a notice that this node holds the flow, else 0. */
static __always_inline __u32 notify_ingress(struct packet *packet, const struct self *self,
					    const struct frontend *frontend)
{
	__u32 ingress = path_node(packet->path, PATH_INGRESS);

	if (ingress == self->id) {
		if (packet->zone_steps || path_node(packet->path, PATH_CHOOSER) != self->id)
			exception_learn(&packet->flow,
					row_index(frontend->table, packet->node_hash), self->id);
		return 0;
	}
	if (!node_is_known(ingress))
		return 0;
	trace_step(TRACE_NOTIFIES);
	packet->path = path_as(path_with(packet->path, PATH_CHOOSER, self->id), PATH_NOTICE);
	zones_unasked(packet);
	return ingress;
}

/* Notifies the row's primary that this node holds the flow of a Local frontend or, with a zero
 * holder, that the flow has ended, so that other ingress nodes can ask the primary. The packet
 * returns from there. Returns the primary, or 0.
 */
static __always_inline __u32 tell_primary(struct packet *packet, const struct self *self,
					  const struct frontend *frontend, __u32 holder)
{
	__u32 primary;
	struct row *row;

	if (!(frontend->flags & FRONTEND_LOCAL) || !frontend->table ||
	    packet->flow.protocol != IPPROTO_TCP || path_role(packet->path) == PATH_FINAL)
		return 0;
	row = row_of(frontend->table, packet->node_hash);
	primary = row ? row_primary(row->path) : 0;
	if (primary == self->id || !node_is_known(primary))
		return 0;
	trace_step(TRACE_NOTIFIES);
	packet->path = path_with((struct path){ .word = PATH_NOTICE }, PATH_INGRESS, primary);
	packet->path = path_with(packet->path, PATH_CHOOSER, holder);
	zones_unasked(packet);
	return primary;
}

/* Only the exception's own node can delete it. */
static __always_inline __u32 local_notified(struct packet *packet, const struct self *self,
					    const struct frontend *frontend, __u32 index, __u64 row)
{
	__u32 holder = path_node(packet->path, PATH_CHOOSER);

	if (holder) {
		/* The table may be missing on this node only, for lack of memory. */
		if (frontend->table)
			exception_learn(&packet->flow, index, holder);
		packet->path = path_as(packet->path, PATH_FINAL);
		return holder;
	}
	exception_withdraw(&packet->flow, packet->sender);
	if (!(packet->path.word & PATH_WALK)) {
		packet->path =
			path_as(path_with(packet->path, PATH_CHOOSER, packet->sender), PATH_FINAL);
		return packet->sender;
	}
	if (!frontend->endpoints) {
		packet->path = path_walking(path_by_row(row, self));
		return path_node(packet->path, PATH_CHOOSER);
	}
	packet->sender = 0;
	packet->path = path_walking(path_of_own(self));
	return self->id;
}

/* Only notices about their own sender are accepted. Returns the next node, or 0. */
__noinline int exception_notified(struct packet *packet, const struct self *self,
				  const struct frontend *frontend)
{
	__u32 holder, index;
	struct row *row;

	if (!packet || !self || !frontend)
		return 0;
	holder = path_node(packet->path, PATH_CHOOSER);
	index = row_index(frontend->table, packet->node_hash);
	row = bpf_map_lookup_elem(&rows, &index);
	if (path_node(packet->path, PATH_INGRESS) != self->id ||
	    (holder && holder != packet->sender) || !row ||
	    (!frontend->table && !(frontend->flags & FRONTEND_LOCAL)))
		return 0;
	trace_step(TRACE_NOTIFIED);
	zones_unasked(packet);
	if (frontend->flags & FRONTEND_LOCAL)
		return local_notified(packet, self, frontend, index, row->path);
	packet->path = path_walking(path_by_row(row->path, self));
	if (!holder) {
		exception_withdraw(&packet->flow, packet->sender);
		return path_node(packet->path, PATH_CHOOSER);
	}
	if (holder == path_node(packet->path, PATH_CHOOSER))
		exception_forget(exception_print(&packet->flow));
	else
		exception_learn(&packet->flow, index, holder);
	packet->path = path_as(packet->path, PATH_FINAL);
	return holder;
}
