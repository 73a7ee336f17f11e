/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "flow_timeout.h"
#include "hash.h"
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
 *
 * A frontend without zones whose rows are selected in another way since it was switched has one
 * such step, STEP_SWITCHED: the row that the flow had before.
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

/* Reports whether established flows may have been selected in another way. Never with zones. */
static __always_inline int is_switched(const struct frontend *frontend)
{
	return frontend->switched &&
	       !clock_passed(frontend->switched, idle_seconds(FLOW_ESTABLISHED));
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

/* Reports whether a node of another row may own the flow. */
static __always_inline int has_steps(const struct frontend *frontend)
{
	return is_switched(frontend) || has_zones(frontend);
}

/* Returns the table of the next step and sets its number; 0 at the end. */
static __always_inline __u32 next_table(const struct packet *packet, const struct self *self,
					const struct frontend *frontend, __u32 *step)
{
	__u32 zone = zone_of(path_node(packet->path, PATH_INGRESS), self);
	__u32 id = frontend->id, on = packet->zone_steps, table = 0;
	struct zones *zones = bpf_map_lookup_elem(&zone_tables, &id);

	if (is_switched(frontend)) {
		*step = on < STEP_SWITCHED ? STEP_SWITCHED : ZONES;
		return on < ZONES ? frontend->table : 0;
	}
	for (int i = 0; zones && i < ZONES && on < ZONES && !table; i++) {
		on++;
		table = zones->table[(zone + on) & (ZONES - 1)];
	}
	*step = on;
	return table;
}

/* Sets the path to that of the next zone with a table, at last the ingress node's own without a
 * chain. Returns 0 at the end, or if the frontend has one table. Global, so that the loop that
 * calls it is verified faster.
 */
__noinline int path_next_zone(struct packet *packet, const struct self *self,
			      const struct frontend *frontend)
{
	__u32 table, ingress, on = 0;
	struct path path;
	struct row *row;

	if (!packet || !self || !frontend)
		return 0;
	ingress = path_node(packet->path, PATH_INGRESS);
	table = next_table(packet, self, frontend, &on);
	if (!table || (on == ZONES && !packet->zone_steps))
		return 0;
	packet->zone_steps = on;
	if (frontend->switched)
		hash_flow(packet, frontend);
	row = row_of(table, packet->node_hash);
	if (!row)
		return 0;
	path = path_with(row_path(row->path), PATH_INGRESS, ingress);
	if (on == ZONES)
		path = path_without_chain(path);
	if (on == ZONES && frontend->flags & FRONTEND_LOCAL)
		path = path_with(path, PATH_CHOOSER, ingress);
	path.word |= packet->path.word & (PATH_ROLE | PATH_LOOKUP);
	packet->path = path;
	return 1;
}
