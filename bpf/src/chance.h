/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "encap.h"
#include "settings.h"

static __always_inline int node_is_known(__u32 id)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	return node && (node->ipv4 || !address_is_zero(&node->ipv6));
}

/* The node to ask next for a flow that this one does not know; zero means that nobody is
 * left, and this node may choose. The chain only gets shorter, and its end leads
 * back to the primary of the row, which chooses: so the packet of a flow whose state
 * was lost goes where the flow went before, and none can circle.
 */
static __always_inline __u32 second_chance(struct packet *packet, __u32 self)
{
	__u32 chooser = way_node(packet->way, WAY_CHOOSER);

#pragma unroll
	for (int i = 0; i < CHAIN_LENGTH; i++) {
		__u32 next = way_node(packet->way, WAY_NEXT);

		packet->way = way_advance(packet->way);
		if (next && next != self && node_is_known(next)) {
			trace_step(TRACE_SECOND_CHANCE);
			count_event(EVENT_SECOND_CHANCE);
			return next;
		}
	}
	if (chooser == self || !node_is_known(chooser))
		return 0;
	trace_step(TRACE_RETURNED);
	count_event(EVENT_SECOND_CHANCE_RETURNED);
	return chooser;
}
