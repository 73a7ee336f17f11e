/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"
#include "node.h"
#include "path.h"
#include "row.h"

/* A frontend whose endpoints have zone hints has a node table for each zone. A packet goes by
 * the table of its ingress node's zone.
 *
 * A flow that began in another zone is on a node of another table. So where no node of its
 * path knows a flow, the packet gets the path of the next zone, in the order of their numbers.
 * The last is the ingress node's own zone again: its primary then chooses. How many steps the
 * packet has gone travels with it (geneve.h). The number only grows, up to ZONES.
 */

/* The table that the packet's path is from; zero means none. */
static __always_inline __u32 zone_table(const struct packet *packet, const struct self *self,
					const struct frontend *frontend)
{
	__u32 zone = zone_of(path_node(packet->path, PATH_INGRESS), self) + packet->zone_steps;
	__u32 id = frontend->id;
	struct zones *zones = bpf_map_lookup_elem(&zone_tables, &id);
	__u32 table = zones ? zones->table[zone & (ZONES - 1)] : 0;

	return table ? table : frontend->table;
}

/* Gives the packet the path of the next zone that has a table. After all others that is the
 * ingress node's own zone, without a chain. Zero means that this came before, or that the
 * frontend has one table only. Verified on its own, apart from the loop that calls it.
 */
__noinline int path_next_zone(struct packet *packet, const struct self *self,
			      const struct frontend *frontend)
{
	__u32 zone, id, on, table = 0;
	struct zones *zones;
	struct path path;
	struct row *row;

	if (!packet || !self || !frontend)
		return 0;
	zone = zone_of(path_node(packet->path, PATH_INGRESS), self);
	id = frontend->id;
	on = packet->zone_steps;
	zones = bpf_map_lookup_elem(&zone_tables, &id);
	if (!zones)
		return 0;
	for (int i = 0; i < ZONES && on < ZONES && !table; i++) {
		on++;
		table = zones->table[(zone + on) & (ZONES - 1)];
	}
	row = table ? row_of(table, packet->node_hash) : NULL;
	if (!row || (on == ZONES && !packet->zone_steps))
		return 0;
	path = path_with(row_path(row->path), PATH_INGRESS, path_node(packet->path, PATH_INGRESS));
	if (on == ZONES)
		path = path_without_chain(path);
	path.word |= packet->path.word & (PATH_ROLE | PATH_WALK);
	packet->path = path;
	packet->zone_steps = on;
	return 1;
}
