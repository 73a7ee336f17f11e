/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "count.h"
#include "maps.h"

static __always_inline int sampling_allows(struct sampling *sampling)
{
	if (clock_passed(sampling->since, 1)) {
		sampling->since = clock_now();
		sampling->taken = 0;
	}
	if (sampling->taken >= SAMPLES_PER_SECOND) {
		sampling->skipped++;
		return 0;
	}
	sampling->taken++;
	return 1;
}

static __always_inline void record_drop(const struct flow *flow, __u32 length, __u32 ifindex,
					__u32 frontend, __u32 reason)
{
	struct sampling *sampling;
	struct drop_sample *sample;

	count_drop(frontend, reason);
	sampling = bpf_map_lookup_elem(&drop_sampling, &reason);
	if (!sampling || !sampling_allows(sampling))
		return;
	sample = bpf_ringbuf_reserve(&drop_samples, sizeof(*sample), 0);
	if (!sample) {
		sampling->lost++;
		return;
	}
	sample->time = bpf_ktime_get_ns();
	sample->flow = *flow;
	sample->length = length;
	sample->ifindex = ifindex;
	sample->frontend = frontend;
	sample->reason = reason;
	bpf_ringbuf_submit(sample, 0);
}

__noinline int record_packet_drop(struct xdp_md *ctx, const struct packet *packet, __u32 reason)
{
	if (packet)
		record_drop(&packet->flow, packet->length, ctx->ingress_ifindex, packet->frontend,
			    reason);
	return 0;
}

/* For the fast path, which has no struct packet. */
__noinline int drop_unread(struct xdp_md *ctx, __u32 frontend, __u32 reason)
{
	const struct flow none = {};

	record_drop(&none, 0, ctx->ingress_ifindex, frontend, reason);
	return XDP_DROP;
}
