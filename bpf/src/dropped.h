/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "maps.h"

/* A drop is counted and sampled at the end of the program, where the packet and its
 * frontend are at hand: what finds the reason returns a verdict beyond those of XDP.
 */
#define VERDICT_DROPPED 0x100

/* Drops the packet for the reason. The result must get to finish. */
static __always_inline int drop(enum drop_reason reason)
{
	return VERDICT_DROPPED + reason;
}

static __always_inline void count_drop(__u32 frontend, __u32 reason)
{
	struct frontend_drop key = { .frontend = frontend, .reason = reason };
	__u64 *count = bpf_map_lookup_elem(&drop_counts, &reason);
	const __u64 first = 1;

	if (count)
		(*count)++;
	if (!frontend)
		return;
	count = bpf_map_lookup_elem(&frontend_drops, &key);
	if (count)
		(*count)++;
	else
		map_update(&frontend_drops, &key, &first, BPF_NOEXIST);
}

/* Whether this CPU may still sample the reason in this second. */
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

/* Counts a dropped packet and samples it. */
static __always_inline void note_drop(const struct flow *flow, __u32 length, __u32 ifindex,
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

/* Verified on its own, so that the way of a packet that is forwarded stays short. */
__noinline int dropped(struct xdp_md *ctx, const struct packet *packet, __u32 reason)
{
	trace_drop(reason);
	if (packet && !tracing)
		note_drop(&packet->flow, packet->length, ctx->ingress_ifindex, packet->frontend,
			  reason);
	return XDP_DROP;
}

/* Turns what the steps return into a verdict of XDP. */
static __always_inline int finish(struct xdp_md *ctx, const struct packet *packet, int verdict)
{
	if (verdict < VERDICT_DROPPED)
		return verdict;
	return dropped(ctx, packet, verdict - VERDICT_DROPPED);
}
