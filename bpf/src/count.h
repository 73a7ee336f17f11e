/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "drop_reason.h"
#include "event.h"
#include "maps.h"
#include "trace.h"

static __always_inline void count_event(enum event event)
{
	__u64 *count = bpf_map_lookup_elem(&event_counts, &event);

	if (count && !tracing)
		(*count)++;
}

/* Not for programs that trace. */
static __always_inline void count_attached(__u32 frontend, __u32 bytes)
{
	struct frontend_counter *count = bpf_map_lookup_elem(&frontend_counts, &frontend);

	if (count) {
		count->packets++;
		count->bytes += bytes;
	}
}

static __always_inline void count_packet(__u32 frontend, __u32 bytes)
{
	if (!tracing)
		count_attached(frontend, bytes);
}

static __always_inline void count_connection(__u32 frontend)
{
	struct frontend_counter *count = bpf_map_lookup_elem(&frontend_counts, &frontend);

	if (count && !tracing)
		count->connections++;
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
