/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "chain.h"
#include "select_endpoint.h"
#include "clock.h"
#include "conntrack.h"
#include "count.h"
#include "deliver.h"
#include "flow_digest.h"
#include "hairpin.h"
#include "validation.h"
#include "trace.h"
#include "verdict.h"

/* Stage 2 finds or selects the endpoint of a flow on this node. */

/* Records a reset by the client. Resets can be spoofed, so the sequence number must be the expected
 * one (RFC 5961 section 3.2), and a later packet of the client cancels it. An ignored reset costs
 * only an entry: the next SYN gets the same endpoint.
 */
static __always_inline void record_reset(const struct packet *packet,
					 const struct tcp_numbers *numbers,
					 struct connection *connection,
					 const struct reverse *reverse)
{
	__u32 flags = connection->flags;

	if (!(packet->tcp_flags & TCP_RST))
		flags &= ~CLIENT_RST;
	else if (reverse && reverse->validation >= VALIDATION_SYN_ACK &&
		 numbers->sequence == reverse->acknowledged)
		flags |= CLIENT_RST;
	if (flags != connection->flags)
		connection->flags = flags;
}

/* Records a FIN until acknowledged, or until the client's data exceed it. */
static __always_inline void record_fin(const struct packet *packet,
				       const struct tcp_numbers *numbers,
				       struct connection *connection, struct reverse *reverse)
{
	if (reverse->validation != VALIDATION_DONE || client_is_done(connection, reverse))
		return;
	if (packet->tcp_flags & TCP_FIN && !(packet->tcp_flags & TCP_SYN) &&
	    within(numbers->end, reverse->acknowledged, FIN_WINDOW)) {
		reverse->sequence = numbers->end;
		connection->flags |= CLIENT_FIN;
	} else if (connection->flags & CLIENT_FIN &&
		   within(reverse->acknowledged, reverse->sequence, 1U << 31)) {
		connection->flags &= ~CLIENT_FIN;
	}
}

/* Reports whether the connection ends with this packet: the endpoint's FIN came before. */
static __always_inline int is_last_fin(const struct packet *packet,
				       const struct tcp_numbers *numbers,
				       const struct reverse *reverse)
{
	return packet->tcp_flags & TCP_FIN && reverse && reverse->flags & SERVER_FIN &&
	       reverse->validation == VALIDATION_DONE && numbers->sequence == reverse->acknowledged;
}

/* Updates the validation state. Reports whether the flow is validated. */
static __always_inline int validate(const struct packet *packet, const struct tcp_numbers *numbers,
				    struct reverse *reverse)
{
	if (packet->flow.protocol == IPPROTO_TCP) {
		reverse->validation = validation_after_client(reverse, numbers->acknowledged);
		if (reverse->validation == VALIDATION_MIDSTREAM) {
			reverse->sequence = numbers->acknowledged;
			reverse->acknowledged = numbers->sequence;
		}
	}
	return reverse->validation == VALIDATION_DONE;
}

/* Moves a flow from the half-open to the established table. */
static __always_inline void establish(const struct packet *packet, const struct frontend *frontend,
				      const struct endpoint *endpoint,
				      const struct connection *connection,
				      const struct reverse *reverse)
{
	struct connection established = *connection;
	struct reverse validated = *reverse;
	const struct flow *flow = &packet->flow;

	if (!half_open_is_current(flow, connection) || !reverse_is_of(&validated, flow))
		return;
	established.flags &= ~(IN_OVERFLOW | OF_DATAGRAMS);
	established.flags |= table_enter(flow, TABLE_ESTABLISHED);
	/* Flows above the quota may be created by a compromised pod. */
	if (!(established.flags & IN_OVERFLOW))
		quota_return(&flow->vip, QUOTA_HALF_OPEN);
	/* The reverse entry comes first: a connection always needs one. */
	if (reverse_add(flow, endpoint, established.flags, &validated))
		return;
	filter_add(flow);
	if (connection_add(flow, &established))
		return;
	filter_add(flow);
	/* An earlier flow of the client's port had another endpoint. */
	digest_delete(flow);
	/* The packet may also end the connection. */
	if (flow_state(flow->protocol, TABLE_ESTABLISHED, &established, &validated) != FLOW_CLOSED)
		digest_store(flow, frontend, established.endpoint, established.flags & IN_OVERFLOW);
	/* Last, because another CPU may have just missed the established entry. */
	half_open_delete(flow, endpoint, connection->flags);
	if (frontend->affinity)
		affinity_record_put(packet, frontend, established.endpoint, established.tag);
}

static __always_inline void reverse_restore(const struct packet *packet,
					    const struct frontend *frontend,
					    const struct endpoint *endpoint, enum table table,
					    __u32 flags, const struct tcp_numbers *numbers)
{
	enum validation validation = VALIDATION_DONE;
	struct reverse reverse;

	if (table == TABLE_HALF_OPEN)
		validation = is_midstream(packet) ? VALIDATION_MIDSTREAM : VALIDATION_SYN;
	reverse =
		reverse_new(packet, frontend, validation, numbers->acknowledged, numbers->sequence);
	if (table == TABLE_HALF_OPEN)
		half_open_restore_reverse(&packet->flow, endpoint, flags, &reverse);
	else if (!reverse_add(&packet->flow, endpoint, flags, &reverse))
		filter_add(&packet->flow);
}

/* Reports whether a packet of a known flow may change more than counters. */
static __always_inline int needs_update(const struct packet *packet,
					const struct connection *connection, enum table table)
{
	__u32 now = clock_now();

	return table == TABLE_HALF_OPEN || connection->flags & (CLIENT_FIN | CLIENT_RST) ||
	       packet->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST) ||
	       now - connection->seen >= REFRESH_SECONDS * ticks_per_second;
}

/* Result of the flow lookup. */
enum flow_found {
	/* No entry. */
	FLOW_IS_UNKNOWN = VERDICT_FLOW,
	/* The endpoint is gone; the packet may belong to a newer connection on another node. */
	FLOW_ENDPOINT_GONE,
	/* The flow has ended or its endpoint is gone, and the packet begins a new flow. */
	FLOW_IS_EXPIRED,
	/* The flow has ended or expired, and the packet may belong to a newer flow on another node.
	 */
	FLOW_IS_STALE,
	/* Neither the flow nor the packet is validated: another node may own the flow. */
	FLOW_IS_UNVALIDATED,
	/* The packet belongs to the flow and may change its state. */
	FLOW_NEEDS_UPDATE,
	/* The packet belongs to the flow. */
	FLOW_IS_CURRENT,
	/* As FLOW_IS_CURRENT, but the ingress node has no override yet. */
	FLOW_WAS_FORWARDED,
	/* Local frontend: the row's primary must be redirected to this node. */
	FLOW_IS_OWNED,
	/* Local frontend: the row's primary must be sent the end of the flow. */
	FLOW_HAS_ENDED,
	/* Another frontend's flow has the client's port at the endpoint, or a trace ends. */
	FLOW_IS_CONTESTED,
};

/* Seconds between redirects to the row's primary; less than the lifetime of an override. */
#define REDIRECT_SECONDS 1024

/* Reports whether a redirect is due, by time or because the row has moved. */
static __always_inline int is_redirect_due(const struct packet *packet,
					   const struct frontend *frontend, __u32 seen)
{
	__u32 index = row_index(frontend->table, packet->node_hash), now = clock_now();
	struct row_group *group;

	if (now / (REDIRECT_SECONDS * ticks_per_second) !=
	    seen / (REDIRECT_SECONDS * ticks_per_second))
		return 1;
	group = row_group_of(index);
	return group && group->moved && now - group->moved <= now - seen;
}

/* Seconds until the last packets of a closed connection have arrived. */
#define LINGER_SECONDS 10

static __always_inline int is_stale(const struct connection *connection, enum flow_state state)
{
	if (state == FLOW_CLOSED)
		return clock_passed(connection->seen, LINGER_SECONDS);
	return flow_expired(state, connection);
}

/* Reports whether neither the half-open flow nor its packet is validated. A spoofed SYN creates
 * such a flow while another node owns the connection. The reverse entry may belong to a flow of
 * another frontend (flow_contested).
 */
static __always_inline int is_unvalidated(const struct packet *packet,
					  const struct tcp_numbers *numbers,
					  const struct reverse *reverse)
{
	return packet->flow.protocol != IPPROTO_TCP || !reverse ||
	       validation_after_client(reverse, numbers->acknowledged) != VALIDATION_DONE;
}

/* Flags of flow_event. */
enum flow_event_flag {
	/* The flow is in the half-open table. */
	FLOW_IN_HALF_OPEN = 1,
	/* No other node is left to ask. */
	FLOW_LAST_NODE = 2,
};

static __always_inline enum flow_found flow_found(const struct packet *packet,
						  const struct self *self, enum table table)
{
	return table == TABLE_ESTABLISHED && was_forwarded(packet, self) ? FLOW_WAS_FORWARDED :
									   FLOW_IS_CURRENT;
}

/* Updates the flow, whose endpoint exists, by the packet. A stale or unvalidated flow is updated
 * only if no other node remains to be queried.
 *
 * A SYN on a live connection is delivered, and the endpoint replies as in RFC 5961 section 4. SYNs
 * can be spoofed, so they never move a connection.
 */
__noinline int flow_event(struct xdp_md *ctx, const struct packet *packet,
			  const struct frontend *frontend, struct connection *connection, int flags)
{
	enum table table = flags & FLOW_IN_HALF_OPEN ? TABLE_HALF_OPEN : TABLE_ESTABLISHED;
	struct tcp_numbers numbers;
	struct endpoint *endpoint;
	int verdict = FLOW_IS_CURRENT;
	struct reverse *reverse;
	enum flow_state state;
	__u8 protocol;

	if (!packet || !frontend || !connection)
		return FLOW_IS_UNKNOWN;
	protocol = packet->flow.protocol;
	endpoint = endpoint_of(connection);
	/* Another CPU may have changed the entry. */
	if (!endpoint)
		return FLOW_IS_CURRENT;
	numbers = tcp_numbers(ctx, packet);
	reverse = reverse_find(&packet->flow, endpoint);
	/* In the first case another flow uses the client's port at the endpoint. */
	if (!is_midstream(packet) && ((reverse && !reverse_is_of(reverse, &packet->flow)) ||
				      flow_is_expired(protocol, table, connection, reverse)))
		return FLOW_IS_EXPIRED;
	state = flow_state(protocol, table, connection, reverse);
	if (is_midstream(packet) && !(flags & FLOW_LAST_NODE)) {
		if (is_stale(connection, state))
			return FLOW_IS_STALE;
		if (table == TABLE_HALF_OPEN && is_unvalidated(packet, &numbers, reverse))
			return FLOW_IS_UNVALIDATED;
	}
	/* The validation state is the other flow's. */
	if (tracing || (reverse && !reverse_is_of(reverse, &packet->flow)))
		return FLOW_IS_CONTESTED;
	if (protocol == IPPROTO_TCP) {
		record_reset(packet, &numbers, connection, reverse);
		if (reverse)
			record_fin(packet, &numbers, connection, reverse);
		if (flow_state(protocol, table, connection, reverse) == FLOW_CLOSED ||
		    is_last_fin(packet, &numbers, reverse)) {
			digest_delete(&packet->flow);
			if (table == TABLE_ESTABLISHED && !(connection->flags & END_SENT)) {
				connection->flags |= END_SENT;
				verdict = FLOW_HAS_ENDED;
			}
		}
	}
	if (clock_passed(connection->seen, REFRESH_SECONDS)) {
		if (table == TABLE_ESTABLISHED && !(connection->flags & END_SENT) &&
		    is_redirect_due(packet, frontend, connection->seen))
			verdict = FLOW_IS_OWNED;
		connection->seen = clock_now();
		if (table == TABLE_HALF_OPEN)
			half_open_use(&packet->flow, connection->flags);
		if (connection->flags & IN_OVERFLOW)
			overflow_use(&packet->flow.vip, table == TABLE_HALF_OPEN ?
								QUOTA_HALF_OPEN :
								quota_of_protocol(protocol));
	}
	if (!reverse)
		reverse_restore(packet, frontend, endpoint, table, connection->flags, &numbers);
	else if (is_opening(packet) && reverse->validation == VALIDATION_MIDSTREAM)
		/* The SYN-ACK would not match the numbers of the mid-stream packet. */
		reverse->validation = VALIDATION_SYN;
	else if (table == TABLE_HALF_OPEN && !is_opening(packet) &&
		 validate(packet, &numbers, reverse)) {
		/* The packet may also end the connection. */
		record_fin(packet, &numbers, connection, reverse);
		establish(packet, frontend, endpoint, connection, reverse);
		verdict = FLOW_IS_OWNED;
	}
	return frontend->flags & FRONTEND_LOCAL ? verdict : FLOW_IS_CURRENT;
}

/* Looks up and updates the flow. flow_event is verified once for all tables. */
__noinline int flow_update(struct xdp_md *ctx, const struct packet *packet, const struct self *self,
			   const struct frontend *frontend, int flags)
{
	struct connection *connection;
	enum table table;
	int found;

	if (!packet || !self || !frontend)
		return FLOW_IS_UNKNOWN;
	connection = connection_refind(&packet->flow, &table);
	if (!connection)
		return FLOW_IS_CURRENT;
	if (table == TABLE_HALF_OPEN)
		flags |= FLOW_IN_HALF_OPEN;
	found = flow_event(ctx, packet, frontend, connection, flags);
	return found == FLOW_IS_CURRENT ? flow_found(packet, self, table) : found;
}

/* As flow_update. The validation state is the other flow's until this client acknowledges the
 * SYN-ACK.
 */
__noinline int flow_contested(struct xdp_md *ctx, const struct packet *packet,
			      const struct self *self, const struct frontend *frontend)
{
	struct connection *connection;
	struct endpoint *endpoint;
	struct reverse *reverse;
	struct reverse taken;
	enum table table;

	if (!packet || !self || !frontend)
		return FLOW_IS_UNKNOWN;
	connection = connection_refind(&packet->flow, &table);
	if (!connection)
		return FLOW_IS_CURRENT;
	endpoint = endpoint_of(connection);
	reverse = endpoint ? reverse_find(&packet->flow, endpoint) : NULL;
	if (!reverse || reverse_is_of(reverse, &packet->flow) || table != TABLE_HALF_OPEN ||
	    packet->flow.protocol != IPPROTO_TCP)
		return flow_found(packet, self, table);
	/* The connection belongs to the other flow, which is validated. */
	if (reverse->validation == VALIDATION_DONE)
		return FLOW_IS_EXPIRED;
	if (tracing || !has_syn_ack(reverse) ||
	    !acknowledges_syn_ack(reverse, tcp_numbers(ctx, packet).acknowledged))
		return FLOW_IS_CURRENT;
	taken = reverse_new(packet, frontend, VALIDATION_DONE, reverse->sequence,
			    reverse->acknowledged);
	establish(packet, frontend, endpoint, connection, &taken);
	return frontend->flags & FRONTEND_LOCAL ? FLOW_IS_OWNED : FLOW_IS_CURRENT;
}

__noinline int send_redirect(struct packet *packet, const struct self *self,
			     const struct frontend *frontend, int found)
{
	if (!packet || !self || !frontend)
		return 0;
	if (found == FLOW_WAS_FORWARDED)
		return redirect_ingress(packet, self, frontend);
	return redirect_primary(packet, self, frontend, found == FLOW_IS_OWNED ? self->id : 0);
}

__noinline int deliver_selected(struct xdp_md *ctx, struct packet *packet)
{
	struct endpoint *endpoint = packet ? endpoint_get(packet->endpoint) : NULL;

	return endpoint ? deliver(ctx, packet, endpoint) : drop(DROP_NO_ENDPOINT);
}

/* Looks up the flow. Most packets of known flows are delivered here. For others, and for packets
 * that may change the flow, the result goes to stage2_continue.
 *
 * The verifier knows nothing of a global function's arguments, hence the NULL checks.
 */
__noinline int stage2(struct xdp_md *ctx, struct packet *packet, const struct self *self,
		      const struct frontend *frontend)
{
	struct connection *connection;
	struct endpoint *endpoint;
	enum table table;

	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	trace_step(TRACE_STAGE2);
	connection = is_midstream(packet) ? connection_find(&packet->flow, &table) :
					    connection_find_new(&packet->flow, &table);
	if (!connection)
		return FLOW_IS_UNKNOWN;
	trace_known(connection, table == TABLE_HALF_OPEN);
	endpoint = endpoint_of(connection);
	if (!endpoint)
		return is_midstream(packet) ? FLOW_ENDPOINT_GONE : FLOW_IS_EXPIRED;
	packet->endpoint = connection->endpoint;
	if (table == TABLE_HALF_OPEN && !half_open_is_current(&packet->flow, connection))
		return FLOW_IS_UNKNOWN;
	if (needs_update(packet, connection, table))
		return FLOW_NEEDS_UPDATE;
	if (flow_found(packet, self, table) == FLOW_WAS_FORWARDED)
		return FLOW_WAS_FORWARDED;
	return deliver(ctx, packet, endpoint);
}

static __always_inline int stage2_miss(struct xdp_md *ctx, struct packet *packet,
				       const struct self *self, const struct frontend *frontend,
				       enum flow_found found)
{
	__u32 restored = 0;
	int next, id;

	if (found == FLOW_IS_EXPIRED) {
		flow_remove(&packet->flow);
		/* Else packets of the new flow would be led to the endpoint of the previous one. */
		digest_delete(&packet->flow);
	}
	if (found == FLOW_IS_UNKNOWN && is_from_self(self, &packet->flow))
		return send_hairpin(packet, self, frontend);
	if ((found == FLOW_IS_UNKNOWN || found == FLOW_IS_UNVALIDATED) && is_midstream(packet))
		restored = digest_endpoint(&packet->flow);
	if (!restored) {
		next = chain_lookup(packet, self, frontend);
		if (next > 0)
			return send_to(next);
		if (found == FLOW_ENDPOINT_GONE)
			return drop(DROP_ENDPOINT_GONE);
		if (next == LOOKUP_LIMITED) {
			/* Delegated packets are not lookups, so the limit does not apply to them.
			 */
			next = found == FLOW_IS_UNKNOWN ? delegate(packet, self, frontend) : 0;
			return next ? send_to(next) : drop(DROP_LOOKUP_RATE_LIMIT);
		}
	}
	if (found == FLOW_IS_STALE ||
	    (found == FLOW_IS_UNVALIDATED && (!restored || restored == packet->endpoint))) {
		flow_update(ctx, packet, self, frontend, FLOW_LAST_NODE);
		return deliver_selected(ctx, packet);
	}
	/* The connection of the evicted entry had another endpoint. */
	if (found == FLOW_IS_UNVALIDATED)
		flow_remove(&packet->flow);
	next = restored ? 0 : delegate(packet, self, frontend);
	if (next)
		return send_to(next);
	id = select_endpoint(ctx, packet, frontend, restored);
	next = id == -DROP_NO_ENDPOINT ? forward_to_primary(packet, self, frontend) : 0;
	if (next > 0)
		return send_to(next);
	if (id < 0)
		return drop(-id);
	packet->endpoint = id;
	return deliver_selected(ctx, packet);
}

/* Continues after the lookup, when most of the stack is free again. */
static __always_inline int stage2_continue(struct xdp_md *ctx, struct packet *packet,
					   const struct self *self, const struct frontend *frontend,
					   enum flow_found found)
{
	int next;

	if (found == FLOW_NEEDS_UPDATE)
		found = flow_update(ctx, packet, self, frontend, 0);
	if (found == FLOW_IS_CONTESTED)
		found = flow_contested(ctx, packet, self, frontend);
	if (found < FLOW_NEEDS_UPDATE)
		return stage2_miss(ctx, packet, self, frontend, found);
	next = found > FLOW_IS_CURRENT ? send_redirect(packet, self, frontend, found) : 0;
	return next ? send_to(next) : deliver_selected(ctx, packet);
}
