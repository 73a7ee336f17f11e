/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "chain.h"
#include "path.h"
#include "settings.h"
#include "verdict.h"

/* Packets whose client is this very node: its own process, or a pod that the CNI masquerades. They
 * left by an uplink, because nothing on the node translates the VIP, and came back. No endpoint
 * of this node can serve them. The stack takes no IPv4 packet with an own address as source, and
 * the reply would not pass the egress program. So another node serves them.
 */

/* How many rows are looked at for one whose primary is another node. The first half of them are
 * those of the packet's own zone. The stride is 2^32 divided by the golden ratio: the rows lie far
 * apart, so that the shares of the other nodes stay as they are in the table.
 */
#define OTHER_ROWS 32
#define OTHER_ROW_STRIDE 0x9e3779b9

/* Another node that has endpoints of the frontend, for all packets of the flow the same one. */
static __always_inline __u32 other_primary(const struct packet *packet, const struct self *self,
					   const struct frontend *frontend)
{
	__u32 table = zone_table(packet, self, frontend), hash = packet->node_hash, node;
	struct row *row;

	for (int i = 0; i < OTHER_ROWS; i++) {
		hash += OTHER_ROW_STRIDE;
		if (i == OTHER_ROWS / 2)
			table = frontend->table;
		row = table ? row_of(table, hash) : NULL;
		node = row ? row_primary(row->path) : 0;
		if (node != self->id && node_is_known(node))
			return node;
	}
	return 0;
}

/* Another node becomes the chooser. None is asked after it, in no zone: such packets can be
 * spoofed, and one must not become many. Where the chooser is another node already, this one was
 * only asked: the packet goes on as at a node that does not know it. A node that serves a Local
 * frontend has learned where the packets went before.
 */
__noinline int send_elsewhere(struct packet *packet, const struct self *self,
			      const struct frontend *frontend)
{
	int next;

	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	if (other_chooser(packet, self->id)) {
		next = chain_walk(packet, self, frontend);
		return next > 0 ? send_to(next) : drop(DROP_OWN_SOURCE);
	}
	next = local_holder(packet, self, frontend);
	if (!next) {
		next = other_primary(packet, self, frontend);
		packet->path = path_to(packet->path, next);
		packet->asks_nobody = 1;
	}
	return next > 0 ? send_to(next) : drop(DROP_OWN_SOURCE);
}
