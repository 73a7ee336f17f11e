/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_helpers.h>

#include "types.h"

/* True in a second copy of the programs, which the agent loads over the same maps to
 * explain what becomes of a packet. That copy writes down its steps and nothing else: no
 * flow, counter or sample. Every write of a map is therefore by map_update or map_delete,
 * or, where it goes by a pointer, behind `if (!tracing)`. In the programs that are attached
 * the verifier removes all this.
 */
volatile const __u32 tracing;

/* What a traced packet met. */
enum trace_step {
	/* Its destination is a VIP. */
	TRACE_VIP = 1 << 0,
	/* Its frame is addressed to another station. */
	TRACE_OTHER_STATION = 1 << 1,
	/* A node had encapsulated it. */
	TRACE_FROM_NODE = 1 << 2,
	/* Its frontend does not admit every source. */
	TRACE_SOURCE_CHECKED = 1 << 13,
	/* A row was looked up: stage 1. */
	TRACE_ROW = 1 << 3,
	/* This node looked for the flow, or chose for it: stage 2. */
	TRACE_STAGE2 = 1 << 4,
	/* The flow was known, by the large table or the one of half-open flows. */
	TRACE_ESTABLISHED = 1 << 5,
	TRACE_HALF_OPEN = 1 << 6,
	/* An endpoint was chosen for a new flow. */
	TRACE_CHOSEN = 1 << 7,
	/* A new flow gets the endpoint that its client had before. */
	TRACE_AFFINITY = 1 << 14,
	/* It was handed to a former owner of the row, or back to the node that asked. */
	TRACE_SECOND_CHANCE = 1 << 8,
	TRACE_RETURNED = 1 << 9,
	/* An exception led it to the node that holds its flow. */
	TRACE_EXCEPTION = 1 << 15,
	/* The flow is here, and the node that the router chose is told so by the packet. */
	TRACE_TELLS = 1 << 16,
	/* The node that holds the flow, or did, has told this one. */
	TRACE_TOLD = 1 << 17,
	/* It was handed to the next zone, by whose table its flow may have begun. */
	TRACE_OTHER_ZONE = 1 << 18,
	/* It was encapsulated. */
	TRACE_TO_NODE = 1 << 10,
	/* It was given to an endpoint. */
	TRACE_DELIVERED = 1 << 11,
	/* Its next hop is left to the kernel. */
	TRACE_TO_KERNEL = 1 << 12,
	/* The VIP answered it itself. */
	TRACE_ANSWERED = 1 << 19,
};

/* The steps of one packet. Fields are zero where the packet did not get that far. */
struct trace {
	__u32 steps;
	__u32 reason;
	/* Ids of the frontend and the endpoint; the row of the frontend's endpoint table. */
	__u32 frontend;
	__u32 endpoint;
	__u32 endpoint_row;
	/* Row of the frontend's node table, and what stands there. */
	__u32 row;
	struct row owners;
	/* Where it was encapsulated to. */
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

static __always_inline void trace_row(__u32 index, const struct row *row)
{
	struct trace *trace = trace_get();

	if (!trace)
		return;
	trace->steps |= TRACE_ROW;
	trace->row = index & (ROWS - 1);
	trace->owners = *row;
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

/* The endpoint is kept for the client. */
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
