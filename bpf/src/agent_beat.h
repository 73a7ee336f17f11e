/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "types.h"

/* The agent's beats: whether the contents of the maps are current. */

/* The age from which the last beat means that the agent is silent: it hangs or is gone. */
#define AGENT_NANOSECONDS 4000000000ull

/* The time after a silence in which flows that began on another node during the silence may still lack
 * an exception: that of a handshake.
 */
#define AGENT_RETURN_NANOSECONDS 60000000000ull

enum agent_state {
	AGENT_WORKS,
	/* It has returned within AGENT_RETURN_NANOSECONDS. */
	AGENT_RETURNED,
	AGENT_SILENT,
};

/* An agent that never wrote a beat counts as one that works: the maps are from before the first beat. */
static __always_inline enum agent_state agent_state(void)
{
	__u32 zero = 0;
	struct agent_beats *agent = bpf_map_lookup_elem(&agent_beat, &zero);
	__u64 now;

	if (!agent || !agent->beat)
		return AGENT_WORKS;
	now = bpf_ktime_get_ns();
	if (now - agent->beat >= AGENT_NANOSECONDS)
		return AGENT_SILENT;
	if (agent->returned && now - agent->returned < AGENT_RETURN_NANOSECONDS)
		return AGENT_RETURNED;
	return AGENT_WORKS;
}
