/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "override.h"
#include "node.h"
#include "path.h"
#include "row.h"

/* Redirects, named after ICMP redirects (RFC 792): a node informs the ingress node whether it owns
 * a flow. A redirect is the packet itself, sent back to the ingress node, which adds or deletes an
 * override (override.h) and forwards the packet again.
 */

static __always_inline void reset_lookup(struct packet *packet)
{
	packet->zone_steps = 0;
	packet->no_forward = 0;
}

/* Rejects a wrong override of the ingress node. Returns the next node, or 0. */
static __always_inline __u32 override_reject(struct packet *packet, __u32 self)
{
	__u32 ingress = path_node(packet->path, PATH_INGRESS);
	__u32 chooser = path_node(packet->path, PATH_CHOOSER);

	packet->path = path_as(packet->path, PATH_PLAIN);
	reset_lookup(packet);
	if (ingress == self) {
		override_delete(flow_fingerprint(&packet->flow));
		return node_is_known(chooser) ? chooser : 0;
	}
	if (!node_is_known(ingress))
		return 0;
	packet->path = path_as(path_with(packet->path, PATH_CHOOSER, 0), PATH_REDIRECT);
	return ingress;
}

/* Reports whether the packet was forwarded by a lookup, i.e. its ingress node has no override. */
static __always_inline int was_forwarded(const struct packet *packet, const struct self *self)
{
	__u32 ingress = path_node(packet->path, PATH_INGRESS);

	if (!ingress || path_is_straight(packet->path))
		return 0;
	return packet->zone_steps || path_node(packet->path, PATH_CHOOSER) != self->id ||
	       (packet->sender && packet->sender != ingress);
}

/* Returns the ingress node if it needs a redirect to this node, else 0. */
static __always_inline __u32 redirect_ingress(struct packet *packet, const struct self *self,
					      const struct frontend *frontend)
{
	__u32 ingress = path_node(packet->path, PATH_INGRESS);

	if (ingress == self->id) {
		if (packet->zone_steps || path_node(packet->path, PATH_CHOOSER) != self->id)
			override_add(&packet->flow, row_index(frontend->table, packet->node_hash),
				     self->id);
		return 0;
	}
	if (!node_is_known(ingress))
		return 0;
	trace_step(TRACE_REDIRECT_SENT);
	packet->path = path_as(path_with(packet->path, PATH_CHOOSER, self->id), PATH_REDIRECT);
	reset_lookup(packet);
	return ingress;
}

/* Redirects the row's primary to this node as the owner of a Local frontend's flow or, with a zero
 * owner, reports the end of the flow, so that other ingress nodes can query the primary. The packet
 * returns from there. Returns the primary, or 0.
 */
static __always_inline __u32 redirect_primary(struct packet *packet, const struct self *self,
					      const struct frontend *frontend, __u32 owner)
{
	__u32 primary;
	struct row *row;

	if (!(frontend->flags & FRONTEND_LOCAL) || !frontend->table ||
	    packet->flow.protocol != IPPROTO_TCP || path_role(packet->path) == PATH_REDIRECTED)
		return 0;
	row = row_of(frontend->table, packet->node_hash);
	primary = row ? row_primary(row->path) : 0;
	if (primary == self->id || !node_is_known(primary))
		return 0;
	trace_step(TRACE_REDIRECT_SENT);
	packet->path = path_with((struct path){ .word = PATH_REDIRECT }, PATH_INGRESS, primary);
	packet->path = path_with(packet->path, PATH_CHOOSER, owner);
	reset_lookup(packet);
	return primary;
}

/* Only the override's own node can delete it. */
static __always_inline __u32 local_redirect_received(struct packet *packet, const struct self *self,
						     const struct frontend *frontend, __u32 index,
						     __u64 row)
{
	__u32 owner = path_node(packet->path, PATH_CHOOSER);

	if (owner) {
		/* The table may be missing on this node only, for lack of memory. */
		if (frontend->table)
			override_add(&packet->flow, index, owner);
		packet->path = path_as(packet->path, PATH_REDIRECTED);
		return owner;
	}
	override_withdraw(&packet->flow, packet->sender);
	if (!(packet->path.word & PATH_LOOKUP)) {
		packet->path = path_as(path_with(packet->path, PATH_CHOOSER, packet->sender),
				       PATH_REDIRECTED);
		return packet->sender;
	}
	if (!frontend->endpoints) {
		packet->path = path_with_lookup(path_by_row(row, self));
		return path_node(packet->path, PATH_CHOOSER);
	}
	packet->sender = 0;
	packet->path = path_with_lookup(path_of_own(self));
	return self->id;
}

/* Only redirects to their own sender are accepted. Returns the next node, or 0. */
__noinline int redirect_received(struct packet *packet, const struct self *self,
				 const struct frontend *frontend)
{
	__u32 owner, index;
	struct row *row;

	if (!packet || !self || !frontend)
		return 0;
	owner = path_node(packet->path, PATH_CHOOSER);
	index = row_index(frontend->table, packet->node_hash);
	row = bpf_map_lookup_elem(&rows, &index);
	if (path_node(packet->path, PATH_INGRESS) != self->id ||
	    (owner && owner != packet->sender) || !row ||
	    (!frontend->table && !(frontend->flags & FRONTEND_LOCAL)))
		return 0;
	trace_step(TRACE_REDIRECT_RECEIVED);
	reset_lookup(packet);
	if (frontend->flags & FRONTEND_LOCAL)
		return local_redirect_received(packet, self, frontend, index, row->path);
	packet->path = path_with_lookup(path_by_row(row->path, self));
	if (!owner) {
		override_withdraw(&packet->flow, packet->sender);
		return path_node(packet->path, PATH_CHOOSER);
	}
	if (owner == path_node(packet->path, PATH_CHOOSER))
		override_delete(flow_fingerprint(&packet->flow));
	else
		override_add(&packet->flow, index, owner);
	packet->path = path_as(packet->path, PATH_REDIRECTED);
	return owner;
}
