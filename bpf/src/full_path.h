/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/if_ether.h>

#include "bloom.h"
#include "decap.h"
#include "packet_slot.h"
#include "parse.h"
#include "service_proxy.h"
#include "stage1.h"
#include "vlan.h"

/* Full path: packets that the fast path declines, and packets from other nodes. */

/* Sets found, or returns the verdict. */
static __always_inline int find_frontend(struct xdp_md *ctx, struct packet *packet,
					 const struct self *self, const struct frontend **found)
{
	const struct frontend *frontend;
	int flaw;

	if (!bloom_has_flow(&packet->flow))
		return XDP_PASS;
	frontend = frontend_find(&packet->flow);
	if (!frontend && (service_proxy || is_self(self, &packet->flow)))
		return XDP_PASS;
	flaw = DROP_NO_FRONTEND;
	if (frontend || is_vip(&packet->flow.vip))
		trace_step(TRACE_VIP);
	else
		flaw = unassigned(self, &packet->flow);
	if (!flaw)
		return XDP_PASS;
	if (!frame_is_ours(ctx, self)) {
		trace_step(TRACE_OTHER_STATION);
		return XDP_PASS;
	}
	if (!frontend)
		return flaw == DROP_NO_FRONTEND && is_router_probe(ctx, packet) ?
			       answer_probe(ctx, packet) :
			       drop(flaw);
	*found = frontend;
	return 0;
}

/* frontend is that of the fast path, or NULL. An internal verdict leaves the packet in the slot. */
__noinline int full_path(struct xdp_md *ctx, const struct frontend *frontend)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct packet_slot *slot = packet_slot();
	struct self *self = settings_get();
	struct packet *packet;
	int flaw, verdict;

	if (!slot || !self || (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	packet = &slot->packet;
	*packet = (struct packet){ .l3 = sizeof(*eth) };
	flaw = parse_ip(ctx, packet, eth->h_proto);
	if (flaw == NOT_IP)
		return is_vlan(eth->h_proto) ? VERDICT_SLOW_PATH : XDP_PASS;
	if (flaw)
		return VERDICT_SLOW_PATH;
	if (packet->flow.vip_port == bpf_htons(GENEVE_PORT) &&
	    packet->flow.protocol == IPPROTO_UDP && is_self(self, &packet->flow)) {
		verdict = from_node(ctx, packet, &frontend);
		if (frontend)
			slot->frontend = *frontend;
		return verdict;
	}
	if (!frontend) {
		verdict = find_frontend(ctx, packet, self, &frontend);
		if (!frontend)
			return verdict;
	}
	slot->frontend = *frontend;
	if (pass_to_proxy(ctx, packet, frontend))
		return XDP_PASS;
	return from_router(packet, self, frontend);
}
