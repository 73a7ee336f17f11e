/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "types.h"

/* True in a second copy of the programs, which the agent loads with the same maps to trace a
 * packet. It records only the trace, so maps are written by map_update or map_delete, or if not
 * tracing. The verifier removes dead code.
 */
volatile const __u32 tracing;

enum trace_step {
	TRACE_VIP = 1 << 0,
	/* The destination MAC address is another station's. */
	TRACE_OTHER_STATION = 1 << 1,
	TRACE_FROM_NODE = 1 << 2,
	TRACE_SOURCE_CHECKED = 1 << 3,
	TRACE_ROW = 1 << 4,
	TRACE_STAGE2 = 1 << 5,
	TRACE_ESTABLISHED = 1 << 6,
	TRACE_HALF_OPEN = 1 << 7,
	/* An endpoint was selected for a new flow. */
	TRACE_SELECTED = 1 << 8,
	/* A new flow got the endpoint of the client's previous flows. */
	TRACE_AFFINITY = 1 << 9,
	/* Forwarded to a former primary of the row, or back to the primary. */
	TRACE_LOOKUP_FORWARDED = 1 << 10,
	TRACE_LOOKUP_RETURNED = 1 << 11,
	/* Forwarded by an override to the owner of the flow. */
	TRACE_OVERRIDE = 1 << 12,
	/* Returned to the ingress node as a redirect to this node. */
	TRACE_REDIRECT_SENT = 1 << 13,
	/* Received as a redirect by the ingress node. */
	TRACE_REDIRECT_RECEIVED = 1 << 14,
	/* Forwarded according to the table of the next zone. */
	TRACE_OTHER_ZONE = 1 << 15,
	TRACE_TO_NODE = 1 << 16,
	TRACE_DELIVERED = 1 << 17,
	/* The kernel resolves the next hop. */
	TRACE_TO_KERNEL = 1 << 18,
	/* Replied to on behalf of the VIP. */
	TRACE_REPLIED = 1 << 19,
	/* The agent is down: forwarded to another node of the row, which chooses. */
	TRACE_DELEGATED = 1 << 20,
};

/* Fields that were not reached are 0. */
struct trace {
	__u32 steps;
	__u32 reason;
	/* Ids of frontend and endpoint, and the row of the endpoint table. */
	__u32 frontend;
	__u32 endpoint;
	__u32 endpoint_row;
	/* Row of the node table, and its content. */
	__u32 row;
	struct row owners;
	__u32 node;
	__u32 ifindex;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace);
} trace_record SEC(".maps");

static __always_inline struct trace *trace_get(void)
{
	__u32 zero = 0;

	return tracing ? bpf_map_lookup_elem(&trace_record, &zero) : NULL;
}

static __always_inline void trace_step(enum trace_step step)
{
	struct trace *trace = trace_get();

	if (trace)
		trace->steps |= step;
}

static __always_inline void trace_frontend(const struct frontend *frontend)
{
	struct trace *trace = trace_get();

	if (trace)
		trace->frontend = frontend->id;
}

static __always_inline void trace_row(__u32 row, const struct row *owners)
{
	struct trace *trace = trace_get();

	if (!trace)
		return;
	trace->steps |= TRACE_ROW;
	trace->row = row;
	trace->owners = *owners;
}

static __always_inline void trace_endpoint(__u32 id)
{
	struct trace *trace = trace_get();

	if (trace)
		trace->endpoint = id;
}

static __always_inline void trace_known(const struct connection *connection, int half_open)
{
	struct trace *trace = trace_get();

	if (!trace)
		return;
	trace->steps |= half_open ? TRACE_HALF_OPEN : TRACE_ESTABLISHED;
	trace->endpoint = connection->endpoint;
}

static __always_inline void trace_selected(__u32 index, __u32 id)
{
	struct trace *trace = trace_get();

	if (!trace)
		return;
	trace->steps |= TRACE_SELECTED;
	trace->endpoint_row = index & (ENDPOINT_ROWS - 1);
	trace->endpoint = id;
}

/* The client kept its endpoint. */
static __always_inline void trace_kept(__u32 id)
{
	trace_step(TRACE_AFFINITY);
	trace_endpoint(id);
}

static __always_inline void trace_node(__u32 id)
{
	struct trace *trace = trace_get();

	if (!trace)
		return;
	trace->steps |= TRACE_TO_NODE;
	trace->node = id;
}

static __always_inline void trace_interface(__u32 ifindex)
{
	struct trace *trace = trace_get();

	if (trace)
		trace->ifindex = ifindex;
}

static __always_inline void trace_drop(__u32 reason)
{
	struct trace *trace = trace_get();

	if (trace)
		trace->reason = reason;
}

/* Returns 0 or a negative error. */
static __always_inline long map_update(void *map, const void *key, const void *value, __u64 flags)
{
	return tracing ? 0 : bpf_map_update_elem(map, key, value, flags);
}

static __always_inline void map_delete(void *map, const void *key)
{
	if (!tracing)
		bpf_map_delete_elem(map, key);
}
