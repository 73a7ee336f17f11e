/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "types.h"

/* True in a second copy of the programs, which the agent loads over the same maps to trace a
 * packet. That copy records its steps and nothing else: no flow, counter or sample. So every
 * map is written by map_update or map_delete or, through a pointer, behind `if (!tracing)`. In
 * the attached programs the verifier removes all this.
 */
volatile const __u32 tracing;

/* The steps of a traced packet. */
enum trace_step {
	/* Its destination is a VIP. */
	TRACE_VIP = 1 << 0,
	/* Its frame is addressed to another station. */
	TRACE_OTHER_STATION = 1 << 1,
	/* A node had encapsulated it. */
	TRACE_FROM_NODE = 1 << 2,
	/* Its frontend has source ranges. */
	TRACE_SOURCE_CHECKED = 1 << 3,
	/* A row was looked up: stage 1. */
	TRACE_ROW = 1 << 4,
	/* Stage 2: this node looked up the flow. */
	TRACE_STAGE2 = 1 << 5,
	/* The flow was known: established, or half-open. */
	TRACE_ESTABLISHED = 1 << 6,
	TRACE_HALF_OPEN = 1 << 7,
	/* An endpoint was chosen for a new flow. */
	TRACE_CHOSEN = 1 << 8,
	/* A new flow got the endpoint of its client's previous flows. */
	TRACE_AFFINITY = 1 << 9,
	/* It was sent to a previous primary of the row, or back to the primary. */
	TRACE_SECOND_CHANCE = 1 << 10,
	TRACE_RETURNED = 1 << 11,
	/* It was sent by an exception to the node that holds its flow. */
	TRACE_EXCEPTION = 1 << 12,
	/* The flow is here, and the packet goes back as a notice to its ingress node. */
	TRACE_NOTIFIES = 1 << 13,
	/* It was such a notice, and this is the ingress node. */
	TRACE_NOTIFIED = 1 << 14,
	/* It was sent to a node of the next zone's table. */
	TRACE_OTHER_ZONE = 1 << 15,
	/* It was encapsulated. */
	TRACE_TO_NODE = 1 << 16,
	/* It was given to an endpoint. */
	TRACE_DELIVERED = 1 << 17,
	/* Its next hop was left to the kernel. */
	TRACE_TO_KERNEL = 1 << 18,
	/* The VIP answered it itself. */
	TRACE_ANSWERED = 1 << 19,
	/* The agent is silent: it was sent to another node of the row, which chooses. */
	TRACE_HANDED_ON = 1 << 20,
};

/* The steps of one packet. Fields are zero where the packet did not get that far. */
struct trace {
	__u32 steps;
	__u32 reason;
	/* Ids of the frontend and the endpoint; the row of the frontend's endpoint table. */
	__u32 frontend;
	__u32 endpoint;
	__u32 endpoint_row;
	/* Row of the frontend's node table, and its content. */
	__u32 row;
	struct row owners;
	/* The node that it was encapsulated to. */
	__u32 node;
	/* By which interface it leaves. */
	__u32 ifindex;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace);
} trace_record SEC(".maps");

/* NULL where nothing is traced. */
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

/* The flow was known. */
static __always_inline void trace_known(const struct connection *connection, int half_open)
{
	struct trace *trace = trace_get();

	if (!trace)
		return;
	trace->steps |= half_open ? TRACE_HALF_OPEN : TRACE_ESTABLISHED;
	trace->endpoint = connection->endpoint;
}

static __always_inline void trace_chosen(__u32 index, __u32 id)
{
	struct trace *trace = trace_get();

	if (!trace)
		return;
	trace->steps |= TRACE_CHOSEN;
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

/* Zero, or a negative error. */
static __always_inline long map_update(void *map, const void *key, const void *value, __u64 flags)
{
	return tracing ? 0 : bpf_map_update_elem(map, key, value, flags);
}

static __always_inline void map_delete(void *map, const void *key)
{
	if (!tracing)
		bpf_map_delete_elem(map, key);
}
