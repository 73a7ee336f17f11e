/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"
#include "trace.h"

/* The packet that this CPU works at: on the stack it would take room from every stage. There is one
 * at a time, for XDP programs run in soft interrupts, which do not interrupt each other. The tracing
 * copy is run by the agent, which they do interrupt. So that has the second slot.
 */
static __always_inline struct packet_slot *packet_slot(void)
{
	__u32 place = !!tracing;

	return bpf_map_lookup_elem(&packet_slots, &place);
}

/* The same of replies: packets leave with soft interrupts off. Nobody traces them. */
static __always_inline struct reply_slot *reply_slot(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&reply_slots, &zero);
}
