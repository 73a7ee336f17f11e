/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "types.h"

/* Detection of an unresponsive agent. */

/* Age of the last heartbeat, in nanoseconds, at which the agent is considered down. */
#define AGENT_TIMEOUT_NS 4000000000ull

/* Nanoseconds after the agent's return until handshakes have ended: overrides may be missing. */
#define AGENT_RETURN_NS 60000000000ull

enum agent_state {
	AGENT_WORKS,
	AGENT_RETURNED,
	AGENT_SILENT,
};

/* Returns AGENT_WORKS before the first heartbeat. */
static __always_inline enum agent_state agent_state(void)
{
	__u32 zero = 0;
	struct agent_heartbeats *agent = bpf_map_lookup_elem(&agent_heartbeat, &zero);
	__u64 now;

	if (!agent || !agent->beat)
		return AGENT_WORKS;
	now = bpf_ktime_get_ns();
	if (now - agent->beat >= AGENT_TIMEOUT_NS)
		return AGENT_SILENT;
	if (agent->returned && now - agent->returned < AGENT_RETURN_NS)
		return AGENT_RETURNED;
	return AGENT_WORKS;
}
