/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "chain.h"
#include "path.h"
#include "settings.h"
#include "verdict.h"

/* Packets whose client is this node: a local process, or a pod that the CNI masquerades. They left
 * by an uplink, because the VIP is not translated locally, and were routed back. Endpoints of this
 * node cannot serve them, because the stack drops IPv4 packets with a local source, and the reply
 * would bypass the egress program. Another node serves them.
 */

/* Rows searched for another primary; the stride of 2^32 / golden ratio spreads them. */
#define OTHER_ROWS 32
#define OTHER_ROW_STRIDE 0x9e3779b9

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

/* Forwards to another node as chooser and last hop, because the packets may be spoofed and must not
 * multiply. If the chooser already is another node, the packet follows its chain. For a Local
 * frontend, a known owner comes first.
 */
__noinline int send_hairpin(struct packet *packet, const struct self *self,
			    const struct frontend *frontend)
{
	int next;

	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	if (other_chooser(packet, self->id)) {
		next = chain_lookup(packet, self, frontend);
		return next > 0 ? send_to(next) : drop(DROP_HAIRPIN);
	}
	next = local_owner(packet, self, frontend);
	if (!next) {
		next = other_primary(packet, self, frontend);
		packet->path = path_to(packet->path, next);
		packet->no_forward = 1;
	}
	return next > 0 ? send_to(next) : drop(DROP_HAIRPIN);
}
