/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "answer.h"
#include "drop_sample.h"
#include "encap.h"
#include "exception_notice.h"
#include "related.h"
#include "stage2.h"
#include "verdict.h"

/* The dispatcher: full and slow path end here. It runs the stages that an internal verdict
 * asks for, until an XDP action is left.
 */

/* Counts and samples a packet that is dropped. Some clients get an answer. Verified on its
 * own, so that forwarded packets do not cost the verifier its instructions.
 */
__noinline int drop_packet(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	trace_drop(reason);
	if (!tracing)
		record_packet_drop(ctx, packet, reason);
	if (reason == DROP_NO_ENDPOINT || reason == DROP_SHARE_REFUSED ||
	    reason == DROP_ENCAP_TOO_BIG)
		return answer_drop(ctx, packet, reason);
	return XDP_DROP;
}

static __always_inline int finish(struct xdp_md *ctx, struct packet *packet,
				  const struct self *self, const struct frontend *frontend,
				  int verdict)
{
	if (verdict == VERDICT_STAGE2 && (packet->path & PATH_FINAL) == PATH_NOTICE) {
		int node = exception_notified(packet, self, frontend);

		if (!node)
			verdict = drop(DROP_TUNNEL_EXCEPTION);
		else if (node != self->id)
			verdict = send_to(node);
	}
	if (verdict == VERDICT_STAGE2 && packet->kind != PACKET_TRANSPORT)
		verdict = stage2_related(ctx, packet, self, frontend);
	else if (verdict == VERDICT_STAGE2)
		verdict = stage2(ctx, packet, self, frontend);
	if (verdict >= VERDICT_SEND)
		verdict = encapsulate(ctx, packet, self, verdict - VERDICT_SEND);
	if (verdict >= VERDICT_DROP)
		return drop_packet(ctx, packet, verdict - VERDICT_DROP);
	return verdict;
}
