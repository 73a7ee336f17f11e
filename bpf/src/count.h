/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "dropped.h"
#include "maps.h"

static __always_inline void count_event(enum event event)
{
	__u64 *count = bpf_map_lookup_elem(&event_counts, &event);

	if (count && !tracing)
		(*count)++;
}

/* Not for a packet that is traced. */
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
