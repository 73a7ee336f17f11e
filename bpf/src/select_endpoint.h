/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "affinity.h"
#include "conntrack.h"
#include "count.h"
#include "endpoint.h"
#include "endpoint_source.h"
#include "frame.h"
#include "validation.h"
#include "row.h"
#include "settings.h"
#include "trace.h"

/* Flows through several frontends may share a client port and endpoint, and so the entry. */
static __always_inline int reverse_is_of(const struct reverse *reverse, const struct flow *flow)
{
	return reverse->vip_port == flow->vip_port && address_equal(&reverse->vip, &flow->vip);
}

/* Conflicts on the client's address and port at an endpoint. */
enum endpoint_use {
	/* A live connection through another frontend, or a SYN-ACK is pending for a newer one. */
	ENDPOINT_TAKEN,
	/* A flow through another frontend is unvalidated, or just closed and possibly in TIME-WAIT.
	 * Other endpoints are preferred, else the newest flow gets the replies. It inherits a
	 * SYN-ACK that the other flow may still acknowledge.
	 */
	ENDPOINT_CONTESTED,
	ENDPOINT_UNUSED,
	ENDPOINT_LEFT,
};

/* Seconds of TIME-WAIT on Linux endpoints, which could drop the SYN of another frontend as old. */
#define TIME_WAIT_SECONDS 60

static __always_inline int has_remains(const struct connection *connection, enum table table,
				       enum flow_state state)
{
	return state == FLOW_CLOSED && table == TABLE_ESTABLISHED &&
	       !clock_passed(connection->seen, TIME_WAIT_SECONDS);
}

static __always_inline struct tcp_numbers tcp_numbers(const struct xdp_md *ctx,
						      const struct packet *packet)
{
	struct tcphdr *tcp = frame_at(ctx, packet->l4);
	struct tcp_numbers numbers = {};

	if (packet->flow.protocol != IPPROTO_TCP || (void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return numbers;
	numbers.sequence = bpf_ntohl(tcp->seq);
	numbers.acknowledged = bpf_ntohl(tcp->ack_seq);
	numbers.end = numbers.sequence + packet->length -
		      (packet->l4 - packet->l3 + tcp->doff * 4) + tcp->fin;
	return numbers;
}

/* An endpoint that sent a SYN-ACK has no connection on the client's port. */
static __always_inline int may_contest(const struct xdp_md *ctx, const struct packet *packet,
				       const struct reverse *reverse)
{
	return !is_midstream(packet) || !has_syn_ack(reverse) ||
	       acknowledges_syn_ack(reverse, tcp_numbers(ctx, packet).acknowledged);
}

__noinline int endpoint_use(struct xdp_md *ctx, const struct packet *packet,
			    const struct endpoint *endpoint)
{
	struct connection *connection;
	struct reverse *reverse;
	const struct flow *flow;
	enum flow_state state;
	enum table table;

	if (!packet || !endpoint)
		return ENDPOINT_TAKEN;
	flow = &packet->flow;
	reverse = reverse_find_new(flow, endpoint);
	if (!reverse)
		return ENDPOINT_UNUSED;
	if (reverse_is_of(reverse, flow))
		return ENDPOINT_LEFT;

	struct flow other = *flow;

	other.vip = reverse->vip;
	other.vip_port = reverse->vip_port;
	connection = connection_find(&other, &table);
	if (!connection || connection->tag != endpoint->tag)
		return ENDPOINT_LEFT;
	state = flow_state(flow->protocol, table, connection, reverse);
	if (has_remains(connection, table, state))
		return ENDPOINT_CONTESTED;
	if (flow_expired(state, connection))
		return ENDPOINT_LEFT;
	if (table != TABLE_HALF_OPEN || !may_contest(ctx, packet, reverse))
		return ENDPOINT_TAKEN;
	return ENDPOINT_CONTESTED;
}

/* acknowledged and sequence are those of a mid-stream TCP packet, or of the ACK of a SYN-ACK. */
static __always_inline struct reverse reverse_new(const struct packet *packet,
						  const struct frontend *frontend,
						  enum validation validation, __u32 acknowledged,
						  __u32 sequence)
{
	struct reverse reverse = {
		.vip = packet->flow.vip,
		.vip_port = packet->flow.vip_port,
		.validation = validation,
		.flags = frontend->flags & FRONTEND_LOCAL && !frontend->table ? 0 : REVERSE_CLAMP,
		.sequence = acknowledged,
		.acknowledged =
			validation == VALIDATION_SYN || validation == VALIDATION_SYN_REUSED ?
				0 :
				sequence,
	};

	return reverse;
}

/* Distance to the next row with another endpoint. Global, so its loop is verified once. */
__noinline int rows_to_other(__u32 table, __u32 row)
{
	__u32 id = endpoint_at(endpoint_row_index(table, row));
	int i;

	for (i = 1; i < ENDPOINT_ROW_ATTEMPTS; i++)
		if (endpoint_at(endpoint_row_index(table, row + i)) != id)
			break;
	return i;
}

/* Returns an endpoint id or the negated drop reason. Mid-stream packets are not refused. */
static __always_inline int endpoint_by_hash(struct xdp_md *ctx, const struct packet *packet,
					    const struct frontend *frontend, enum endpoint_use *use)
{
	__u32 row = packet->endpoint_hash >> ENDPOINT_ROW_SHIFT;
	int reason = DROP_NO_ENDPOINT;
	__u32 contested = 0;

	for (int i = 0; i < ENDPOINT_ATTEMPTS; i++) {
		__u32 index = endpoint_row_index(frontend->endpoints, row);
		__u32 id = endpoint_at(index);
		struct endpoint *endpoint = endpoint_get(id);

		if (!i && id == ENDPOINT_REFUSED && !is_midstream(packet))
			return -DROP_BACKEND_INVALID;
		if (endpoint) {
			*use = endpoint_use(ctx, packet, endpoint);
			if (*use > ENDPOINT_CONTESTED) {
				trace_selected(index, id);
				return id;
			}
			reason = DROP_TUPLE_CONFLICT;
			if (*use == ENDPOINT_CONTESTED && !contested)
				contested = id;
		}
		row += rows_to_other(frontend->endpoints, row);
	}
	if (!contested)
		return -reason;
	*use = ENDPOINT_CONTESTED;
	trace_kept(contested);
	return contested;
}

/* Returns an endpoint id or the negated drop reason. */
static __always_inline int endpoint_for(struct xdp_md *ctx, const struct packet *packet,
					const struct frontend *frontend, enum endpoint_use *use)
{
	struct endpoint *endpoint;
	__u32 id = 0;

	if (!frontend->endpoints)
		return -DROP_NO_ENDPOINT;
	if (frontend->affinity)
		id = affinity_endpoint(packet, frontend);
	endpoint = endpoint_get(id);
	if (endpoint)
		*use = endpoint_use(ctx, packet, endpoint);
	if (!endpoint || *use == ENDPOINT_TAKEN)
		return endpoint_by_hash(ctx, packet, frontend, use);
	trace_kept(id);
	return id;
}

/* One word, to save stack. */
static __always_inline __u64 entry_numbers(__u32 sequence, __u32 acknowledged)
{
	return (__u64)sequence << 32 | acknowledged;
}

/* Returns 0 or the negated drop reason. Separate to limit stack usage. */
__noinline int flow_record(const struct packet *packet, const struct frontend *frontend, __u32 id,
			   int validation, __u64 numbers)
{
	struct endpoint *endpoint = endpoint_get(id);
	struct half_open_bucket *bucket;
	struct half_open *entry;
	const struct flow *flow;
	__u32 flags, index, slot;

	if (!packet || !frontend || !endpoint)
		return -DROP_NO_ENDPOINT;
	flow = &packet->flow;
	flags = table_enter(flow, TABLE_HALF_OPEN);
	index = half_open_place(flow, flags);
	slot = half_open_claim(index);
	bucket = bpf_map_lookup_elem(&half_open_flows, &index);
	/* Compare and use the same register. */
	asm volatile("" : "+r"(slot));
	if (!bucket || slot >= HALF_OPEN_SLOTS)
		return -DROP_FLOW_INSERT;
	entry = &bucket->slot[slot];
	entry->forward_fingerprint = flow_fingerprint(flow);
	entry->reverse_fingerprint = half_open_reverse_fingerprint(flow, endpoint);
	entry->connection.endpoint = id;
	entry->connection.tag = endpoint->tag;
	entry->connection.seen = clock_now();
	entry->connection.flags = flags | (flow->protocol == IPPROTO_TCP ? 0 : OF_DATAGRAMS);
	entry->reverse = reverse_new(packet, frontend, validation, numbers, numbers >> 32);
	half_open_commit(bucket, slot);
	return 0;
}

/* restored is the digest's endpoint or 0. Returns an endpoint id or the negated drop reason. */
__noinline int select_endpoint(struct xdp_md *ctx, const struct packet *packet,
			       const struct frontend *frontend, __u32 restored)
{
	enum endpoint_use use = ENDPOINT_TAKEN;
	enum validation validation = VALIDATION_SYN;
	const struct reverse *previous;
	struct endpoint *endpoint;
	struct tcp_numbers tcp;
	__u64 numbers;
	int id, failed;

	if (!packet || !frontend)
		return -DROP_NO_ENDPOINT;
	id = restored;
	endpoint = endpoint_get(id);
	if (endpoint)
		use = endpoint_use(ctx, packet, endpoint);
	if (!endpoint && is_endpoint_source(&packet->flow))
		return -DROP_ENDPOINT_SOURCE;
	if (!endpoint || use == ENDPOINT_TAKEN) {
		id = endpoint_for(ctx, packet, frontend, &use);
		if (id < 0)
			return id;
	}
	if (tracing)
		return id;
	endpoint = endpoint_get(id);
	if (!endpoint)
		return -DROP_NO_ENDPOINT;
	tcp = tcp_numbers(ctx, packet);
	numbers = entry_numbers(tcp.sequence, tcp.acknowledged);
	if (is_midstream(packet)) {
		validation = VALIDATION_MIDSTREAM;
	} else if (use != ENDPOINT_UNUSED && packet->flow.protocol == IPPROTO_TCP) {
		validation = VALIDATION_SYN_REUSED;
		/* The SYN-ACK of an expired flow is not acknowledged any more. */
		previous = use == ENDPOINT_CONTESTED ?
				   half_open_reverse_of(&packet->flow, endpoint) :
				   NULL;
		if (previous && has_syn_ack(previous)) {
			validation = VALIDATION_CONTESTED;
			numbers = entry_numbers(previous->acknowledged, previous->sequence);
		}
	}
	if (use != ENDPOINT_UNUSED)
		reverse_delete(&packet->flow, endpoint);
	failed = flow_record(packet, frontend, id, validation, numbers);
	if (failed)
		return failed;
	if (!restored)
		count_connection(frontend->id);
	return id;
}
