/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"
#include "node.h"
#include "path.h"
#include "row.h"

/* Topology-aware routing. A frontend whose endpoints have zone hints has a node table per zone.
 * Packets use the table of their ingress node's zone.
 *
 * If no node of that path knows a flow, it may have begun in another zone, so the packet gets the
 * path of the next zone, in numeric order, and finally that of the ingress node's zone again, whose
 * primary chooses. The number of steps is carried in the packet (geneve.h) and only grows, up to
 * ZONES.
 */

/* Returns the table of the packet's path, or 0. */
static __always_inline __u32 zone_table(const struct packet *packet, const struct self *self,
					const struct frontend *frontend)
{
	__u32 zone = zone_of(path_node(packet->path, PATH_INGRESS), self) + packet->zone_steps;
	__u32 id = frontend->id;
	struct zones *zones = bpf_map_lookup_elem(&zone_tables, &id);
	__u32 table = zones ? zones->table[zone & (ZONES - 1)] : 0;

	return table ? table : frontend->table;
}

static __always_inline int has_zones(const struct frontend *frontend)
{
	__u32 id = frontend->id;
	struct zones *zones = bpf_map_lookup_elem(&zone_tables, &id);
	__u32 any = 0;

	if (!zones)
		return 0;
#pragma unroll
	for (int i = 0; i < ZONES; i++)
		any |= zones->table[i];
	return any != 0;
}

/* Sets the path to that of the next zone with a table, at last the ingress node's own without a
 * chain. Returns 0 at the end, or if the frontend has one table. Global, so that the loop that
 * calls it is verified faster.
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
