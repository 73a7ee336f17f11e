/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/if_ether.h>

#include "filter.h"
#include "parse.h"
#include "stage1.h"
#include "tunnel.h"
#include "vlan.h"

/* The way of every packet, of which plain.h is a shorter form. */

/* Finds the frontend of a packet that no node has encapsulated, or the verdict. */
static __always_inline int find_frontend(struct xdp_md *ctx, struct packet *packet,
					 const struct self *self, const struct frontend **found)
{
	const struct frontend *frontend;
	int flaw;

	if (!filter_has_flow(&packet->flow))
		return XDP_PASS;
	frontend = frontend_find(&packet->flow);
	if (!frontend && is_self(self, &packet->flow))
		return XDP_PASS;
	flaw = frontend || is_vip(&packet->flow.vip) ? DROP_NO_FRONTEND : DROP_POOL_UNASSIGNED;
	if (flaw == DROP_POOL_UNASSIGNED && !is_of_pool(&packet->flow))
		return XDP_PASS;
	if (flaw != DROP_POOL_UNASSIGNED)
		trace_step(TRACE_VIP);
	if (!frame_is_ours(ctx, self)) {
		trace_step(TRACE_OTHER_STATION);
		return XDP_PASS;
	}
	if (!frontend)
		return dropped(ctx, packet, flaw);
	*found = frontend;
	return 0;
}

/* frontend is what plain.h has found, for a frame that is ours, or NULL. The result is a
 * verdict, or SLOW_WAY.
 */
__noinline int any_packet(struct xdp_md *ctx, const struct frontend *frontend)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct packet packet = { .l3 = sizeof(*eth) };
	struct self *self;
	int flaw, verdict;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	flaw = parse_ip(ctx, &packet, eth->h_proto);
	if (flaw == NOT_IP)
		return is_vlan(eth->h_proto) ? SLOW_WAY : XDP_PASS;
	self = settings_get();
	if (!self)
		return XDP_PASS;
	if (flaw)
		return SLOW_WAY;
	if (packet.flow.vip_port == bpf_htons(GENEVE_PORT) &&
	    packet.flow.protocol == IPPROTO_UDP && is_self(self, &packet.flow)) {
		verdict = from_node(ctx, &packet, &frontend);
		if (verdict == SLOW_WAY)
			return verdict;
		return finish(ctx, &packet, self, frontend, verdict);
	}
	if (!frontend) {
		verdict = find_frontend(ctx, &packet, self, &frontend);
		if (!frontend)
			return verdict;
	}
	verdict = from_router(&packet, self, frontend);
	return finish(ctx, &packet, self, frontend, verdict);
}
