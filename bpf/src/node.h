/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "address.h"
#include "maps.h"

/* Reports whether the node exists, has an address and is up. */
static __always_inline int node_is_known(__u32 id)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	return node && !(node->flags & NODE_DOWN) && (node->ipv4 || !address_is_zero(&node->ipv6));
}

static __always_inline int node_is_down(__u32 id)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	return node && node->flags & NODE_DOWN;
}

/* Reports whether packets from the node may arrive on the interface. */
static __always_inline int node_is_reached_by(__u32 id, __u32 ifindex)
{
	struct ingress_interfaces *by = bpf_map_lookup_elem(&node_uplinks, &id);

	if (!by || !by->ifindex[0])
		return 1;
#pragma unroll
	for (int i = 0; i < NODE_UPLINKS; i++) {
		if (by->ifindex[i] == ifindex)
			return 1;
	}
	return 0;
}

static __always_inline __u32 zone_of(__u32 node, const struct self *self)
{
	struct node *other;

	if (node == self->id)
		return self->zone;
	other = bpf_map_lookup_elem(&nodes, &node);
	return other ? other->zone : 0;
}
