/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "vip_reply.h"
#include "drop_sample.h"
#include "encap.h"
#include "redirect.h"
#include "packet_slot.h"
#include "related.h"
#include "stage2.h"
#include "verdict.h"

/* Dispatcher: runs the stages for internal verdicts until an XDP action results. */

static __always_inline int drop_silently(struct xdp_md *ctx, const struct packet *packet,
					 enum drop_reason reason)
{
	trace_drop(reason);
	if (!tracing)
		record_packet_drop(ctx, packet, reason);
	return XDP_DROP;
}

/* Drops a packet and replies to some clients. Global, so verified once. */
__noinline int drop_packet(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	int verdict = drop_silently(ctx, packet, reason);

	if (is_rejection(reason) || reason == DROP_PACKET_TOO_BIG)
		verdict = reply_to_drop(ctx, packet, reason);
	return verdict;
}

static __always_inline int finish(struct xdp_md *ctx, int verdict)
{
	struct packet_slot *slot = packet_slot();
	struct self *self = settings_get();
	struct frontend *frontend;
	struct packet *packet;

	if (!slot || !self)
		return XDP_PASS;
	frontend = &slot->frontend;
	packet = &slot->packet;
	if (verdict == VERDICT_STAGE2 && path_role(packet->path) == PATH_REDIRECT) {
		int node = redirect_received(packet, self, frontend);

		if (!node)
			verdict = drop(DROP_TUNNEL_REDIRECT);
		else if (node != self->id)
			verdict = send_to(node);
	}
	if (verdict == VERDICT_STAGE2 && packet->kind != PACKET_TRANSPORT)
		verdict = stage2_related(ctx, packet, self, frontend);
	else if (verdict == VERDICT_STAGE2)
		verdict = stage2(ctx, packet, self, frontend);
	if (verdict >= VERDICT_FLOW && verdict < VERDICT_SEND)
		verdict = stage2_continue(ctx, packet, self, frontend, verdict);
	if (verdict >= VERDICT_SEND)
		verdict = encapsulate(ctx, packet, self, verdict - VERDICT_SEND);
	if (verdict >= VERDICT_DROP)
		verdict = drop_packet(ctx, packet, verdict - VERDICT_DROP);
	return verdict;
}
