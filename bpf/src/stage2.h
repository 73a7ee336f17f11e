/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "conntrack.h"
#include "count.h"
#include "deliver.h"
#include "encap.h"

/* Stage 2: the endpoint on this node that a flow has or gets. */

static __always_inline int is_opening(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* A packet that belongs to a connection made earlier. UDP has no such packets: whoever
 * gets one may choose.
 */
static __always_inline int is_midstream(const struct packet *packet)
{
	return packet->flow.protocol == IPPROTO_TCP && !is_opening(packet);
}

static __always_inline struct endpoint *endpoint_get(__u32 id)
{
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, &id);

	return endpoint && endpoint->port ? endpoint : NULL;
}

/* The endpoint of a connection, if it still is the one that the connection was given. */
static __always_inline struct endpoint *endpoint_of(const struct connection *connection)
{
	struct endpoint *endpoint = endpoint_get(connection->endpoint);

	return endpoint && endpoint->tag == connection->tag ? endpoint : NULL;
}

/* Whether replies of the endpoint to this client address and port can be told to belong
 * to this flow: not if the client uses them towards the endpoint through another
 * frontend, in a connection that still lives.
 */
__noinline int endpoint_is_free(const struct flow *flow, const struct endpoint *endpoint)
{
	struct connection *connection;
	struct reverse *reverse;
	enum table table;

	if (!flow || !endpoint)
		return 0;
	reverse = reverse_find(flow, endpoint);
	if (!reverse)
		return 1;
	if (reverse->vip_port == flow->vip_port && address_equal(&reverse->vip, &flow->vip))
		return 1;

	struct flow other = *flow;

	other.vip = reverse->vip;
	other.vip_port = reverse->vip_port;
	connection = connection_find(&other, &table);
	if (!connection || connection->tag != endpoint->tag)
		return 1;
	return connection_closed(connection, reverse) ||
	       clock_passed(connection->seen, idle_seconds(flow->protocol, table));
}

/* Writes the reverse entry in place if there is one, else into the table. */
static __always_inline long reverse_record(const struct packet *packet,
					   const struct frontend *frontend,
					   const struct endpoint *endpoint, enum table table)
{
	struct reverse *old = reverse_find(&packet->flow, endpoint);
	struct reverse reverse = {
		.vip = packet->flow.vip,
		.vip_port = packet->flow.vip_port,
		.flags = frontend->flags & FRONTEND_LOCAL ? 0 : REVERSE_CLAMP,
	};

	if (old && !tracing) {
		*old = reverse;
		return 0;
	}
	return reverse_add(&packet->flow, endpoint, table, &reverse);
}

/* Chooses an endpoint for a flow that has none, records it and delivers. old is the
 * entry of a former connection of the same client address and port, or NULL.
 */
static __always_inline int stage2_new(struct xdp_md *ctx, struct packet *packet,
				      const struct frontend *frontend, struct connection *old)
{
	struct connection connection = {};
	struct endpoint *endpoint = NULL;
	__u32 reason = DROP_NO_ENDPOINT;
	__u32 index = 0;

	if (!frontend->endpoints)
		return drop(DROP_NO_ENDPOINT);
	for (__u32 i = 0; i < ENDPOINT_ATTEMPTS; i++) {
		__u32 row = (packet->endpoint_hash >> ENDPOINT_ROW_SHIFT) + i;
		__u32 *id;

		index = frontend->endpoints * ENDPOINT_ROWS + (row & (ENDPOINT_ROWS - 1));
		id = bpf_map_lookup_elem(&endpoint_rows, &index);
		if (!id)
			break;
		endpoint = endpoint_get(*id);
		if (!endpoint)
			continue;
		connection.endpoint = *id;
		if (endpoint_is_free(&packet->flow, endpoint))
			break;
		endpoint = NULL;
		reason = DROP_TUPLE_CONFLICT;
	}
	if (!endpoint)
		return drop(reason);
	trace_chosen(index, connection.endpoint);
	connection.tag = endpoint->tag;
	connection.seen = clock_now();
	if (old && !tracing)
		*old = connection;
	else if (connection_add_half_open(&packet->flow, &connection))
		return drop(DROP_CONNECTION_STORE);
	if (reverse_record(packet, frontend, endpoint, TABLE_HALF_OPEN))
		return drop(DROP_CONNECTION_STORE);
	count_connection(frontend->id);
	return deliver(ctx, packet, endpoint);
}

/* The client's second packet proves that it got an answer or insists. */
static __always_inline void promote(const struct packet *packet, const struct frontend *frontend,
				    const struct endpoint *endpoint,
				    const struct connection *half_open)
{
	struct reverse *old = reverse_find(&packet->flow, endpoint);
	struct reverse reverse = {
		.vip = packet->flow.vip,
		.vip_port = packet->flow.vip_port,
		.flags = frontend->flags & FRONTEND_LOCAL ? 0 : REVERSE_CLAMP,
	};

	if (old)
		reverse.flags = old->flags;
	/* The reverse entry first: a connection must never be without one. */
	if (reverse_add(&packet->flow, endpoint, TABLE_ESTABLISHED, &reverse))
		return;
	reverse_delete_half_open(&packet->flow, endpoint);
	connection_promote(&packet->flow, half_open);
}

static __always_inline void note_flags(const struct packet *packet, struct connection *connection)
{
	__u32 flags = connection->flags;

	if (packet->tcp_flags & TCP_RST)
		flags |= CLIENT_RST;
	else
		/* It lives on, so the reset was not the client's, or not in its window. */
		flags &= ~CLIENT_RST;
	if (packet->tcp_flags & TCP_FIN)
		flags |= CLIENT_FIN;
	if (flags != connection->flags && !tracing)
		connection->flags = flags;
}

/* A flow that this node knows. */
static __always_inline int stage2_known(struct xdp_md *ctx, struct packet *packet,
					const struct frontend *frontend,
					struct connection *connection, enum table table)
{
	struct endpoint *endpoint = endpoint_of(connection);

	trace_step(table == TABLE_HALF_OPEN ? TRACE_HALF_OPEN : TRACE_ESTABLISHED);
	trace_endpoint(connection->endpoint);
	if (!endpoint)
		return is_midstream(packet) ? drop(DROP_ENDPOINT_GONE) :
					      stage2_new(ctx, packet, frontend, connection);
	/* A SYN on a living connection goes to its endpoint, which answers it as RFC 5961
	 * section 4 says; it must not move a connection, for anybody can forge one.
	 */
	if (is_opening(packet)) {
		if (connection->flags & (CLIENT_FIN | CLIENT_RST))
			return stage2_new(ctx, packet, frontend, connection);
		return deliver(ctx, packet, endpoint);
	}
	note_flags(packet, connection);
	if (table == TABLE_HALF_OPEN) {
		promote(packet, frontend, endpoint, connection);
	} else if (!tracing && clock_passed(connection->seen, REFRESH_SECONDS)) {
		connection->seen = clock_now();
		if (!reverse_find(&packet->flow, endpoint))
			reverse_record(packet, frontend, endpoint, TABLE_ESTABLISHED);
	}
	return deliver(ctx, packet, endpoint);
}

static __always_inline int node_is_known(__u32 id)
{
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	return node && (node->ipv4 || !address_is_zero(&node->ipv6));
}

/* The node to ask next for a flow that this one does not know; zero means that nobody is
 * left, and this node may choose. The chain only gets shorter, and its end leads
 * back to the node that asked first, which chooses: so the packet of a flow whose state
 * was lost goes where the flow went before, and none can circle.
 */
static __always_inline __u32 second_chance(struct packet *packet, __u32 self)
{
#pragma unroll
	for (int i = 0; i < CHAIN_LENGTH; i++) {
		__u32 next = packet->chain[0];

		packet->chain[0] = packet->chain[1];
		packet->chain[1] = packet->chain[2];
		packet->chain[2] = 0;
		if (next && next != self && node_is_known(next)) {
			if (!packet->asking)
				packet->asking = self;
			trace_step(TRACE_SECOND_CHANCE);
			count_event(EVENT_SECOND_CHANCE);
			return next;
		}
	}
	if (packet->asking == self || !node_is_known(packet->asking))
		return 0;
	trace_step(TRACE_RETURNED);
	count_event(EVENT_SECOND_CHANCE_RETURNED);
	return packet->asking;
}

/* Verified on its own, because it is global; the verifier then knows nothing of its
 * arguments. So are encapsulate and endpoint_is_free.
 */
__noinline int stage2(struct xdp_md *ctx, struct packet *packet, const struct self *self,
		      const struct frontend *frontend)
{
	struct connection *connection;
	enum table table;
	__u32 next;

	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	trace_step(TRACE_STAGE2);
	connection = connection_find(&packet->flow, &table);
	if (connection)
		return stage2_known(ctx, packet, frontend, connection, table);
	if (is_midstream(packet)) {
		next = second_chance(packet, self->id);
		if (next)
			return encapsulate(ctx, packet, self, next);
	}
	return stage2_new(ctx, packet, frontend, NULL);
}
