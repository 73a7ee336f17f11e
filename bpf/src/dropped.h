/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "maps.h"

/* The steps return verdicts beyond those of XDP for what is done at the end of the program,
 * where the packet and its frontend are at hand and most of the stack is free again:
 * a drop is counted and sampled, a packet of this node's own served by stage 2, one for
 * another node encapsulated.
 */
#define VERDICT_DROPPED 0x100
#define VERDICT_SERVE 0x1000
#define VERDICT_SEND 0x10000

/* Drops the packet for the reason. The result must get to finish. */
static __always_inline int drop(enum drop_reason reason)
{
	return VERDICT_DROPPED + reason;
}

/* Gives the packet to stage 2. The result must get to finish. */
static __always_inline int serve_here(void)
{
	return VERDICT_SERVE;
}

/* Sends the packet to a node. The result must get to finish. */
static __always_inline int send_to(__u32 node)
{
	return VERDICT_SEND + node;
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

/* In answer.h. */
int answer_drop(struct xdp_md *ctx, struct packet *packet, __u32 reason);

__noinline int note_packet(struct xdp_md *ctx, const struct packet *packet, __u32 reason)
{
	if (packet)
		note_drop(&packet->flow, packet->length, ctx->ingress_ifindex, packet->frontend,
			  reason);
	return 0;
}

/* Verified on its own, so that the way of a packet that is forwarded stays short. Some
 * senders are told why.
 */
__noinline int dropped(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	trace_drop(reason);
	if (!tracing)
		note_packet(ctx, packet, reason);
	if (reason == DROP_NO_ENDPOINT || reason == DROP_ENCAP_TOO_BIG)
		return answer_drop(ctx, packet, reason);
	return XDP_DROP;
}

/* Drops a packet that was not read into a struct packet. */
__noinline int dropped_unread(struct xdp_md *ctx, __u32 frontend, __u32 reason)
{
	const struct flow none = {};

	note_drop(&none, 0, ctx->ingress_ifindex, frontend, reason);
	return XDP_DROP;
}
