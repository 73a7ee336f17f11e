/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"
#include "trace.h"

/* Per-CPU packet state, to save stack in all stages. XDP programs run in softirq context and do not
 * preempt each other, but they preempt the tracing copy that the agent runs, which uses the second
 * slot.
 */
static __always_inline struct packet_slot *packet_slot(void)
{
	__u32 place = !!tracing;

	return bpf_map_lookup_elem(&packet_slots, &place);
}

/* Per-CPU reply state: egress runs with softirqs disabled and is not traced. */
static __always_inline struct reply_slot *reply_slot(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&reply_slots, &zero);
}
