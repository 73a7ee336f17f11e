/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"
#include "way.h"

/* Zones. A frontend whose endpoints are hinted for zones has a node table for each, and a
 * packet goes by that of the zone of the node that the router chose, its origin. A flow that
 * began in another zone is with a node of another table. So a packet that is asked
 * for is, where nobody on its way knew it, given the way of the next zone, in the order of
 * their numbers, round to the origin's own: that one's primary then chooses. How many steps
 * it is on travels with it (geneve.h); it only grows, up to ZONES.
 */

static __always_inline struct row *row_of(__u32 table, __u32 hash)
{
	__u32 index = table * ROWS + (hash >> ROW_SHIFT);

	return bpf_map_lookup_elem(&rows, &index);
}

static __always_inline __u32 zone_of(__u32 node, const struct self *self)
{
	struct node *other;

	if (node == self->id)
		return self->zone;
	other = bpf_map_lookup_elem(&nodes, &node);
	return other ? other->zone : 0;
}

/* The table by which the packet's way is; zero where there is none. */
static __always_inline __u32 zone_table(const struct packet *packet, const struct self *self,
					const struct frontend *frontend)
{
	__u32 zone = zone_of(way_node(packet->way, WAY_ORIGIN), self) + packet->zones_on;
	__u32 id = frontend->id;
	struct zones *zones = bpf_map_lookup_elem(&zone_tables, &id);
	__u32 table = zones ? zones->table[zone & (ZONES - 1)] : 0;

	return table ? table : frontend->table;
}

/* Gives the packet the way of the next zone that has a table, or, without a chain, that of
 * the origin's own zone, after all others. Zero means that this was so already, or
 * that there is one table only.
 */
static __always_inline int way_next_zone(struct packet *packet, const struct self *self,
					 const struct frontend *frontend)
{
	__u32 zone = zone_of(way_node(packet->way, WAY_ORIGIN), self);
	__u32 id = frontend->id, on = packet->zones_on, table = 0;
	struct zones *zones = bpf_map_lookup_elem(&zone_tables, &id);
	__u64 taken = ROW_WAY & ~WAY_FINAL & ~WAY_ASK;
	struct row *row;

	if (!zones)
		return 0;
	for (int i = 0; i < ZONES && on < ZONES && !table; i++) {
		on++;
		table = zones->table[(zone + on) & (ZONES - 1)];
	}
	row = table ? row_of(table, packet->node_hash) : NULL;
	if (!row || (on == ZONES && !packet->zones_on))
		return 0;
	if (on == ZONES)
		taken &= ~(WAY_CHAIN | WAY_RANKED);
	packet->way = (packet->way & ~(ROW_WAY & ~WAY_FINAL & ~WAY_ASK)) | (row->way & taken);
	packet->zones_on = on;
	return 1;
}
