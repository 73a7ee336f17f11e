/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "chain.h"
#include "choose.h"
#include "clock.h"
#include "conntrack.h"
#include "count.h"
#include "deliver.h"
#include "evicted_flow.h"
#include "own_source.h"
#include "proof.h"
#include "trace.h"
#include "verdict.h"

/* Stage 2 finds or selects the endpoint of a flow on this node. */

/* Records a reset by the client. Resets can be spoofed, so the sequence number must be the expected
 * one (RFC 5961 section 3.2), and a later packet of the client cancels it. An ignored reset costs
 * only an entry: the next SYN gets the same endpoint.
 */
static __always_inline void note_reset(const struct packet *packet,
				       const struct tcp_numbers *numbers,
				       struct connection *connection, const struct reverse *reverse)
{
	__u32 flags = connection->flags;

	if (!(packet->tcp_flags & TCP_RST))
		flags &= ~CLIENT_RST;
	else if (reverse && reverse->proof >= PROOF_OFFERED &&
		 numbers->sequence == reverse->acknowledged)
		flags |= CLIENT_RST;
	if (flags != connection->flags)
		connection->flags = flags;
}

/* Records a FIN until acknowledged, or until the client's data exceed it. */
static __always_inline void note_fin(const struct packet *packet, const struct tcp_numbers *numbers,
				     struct connection *connection, struct reverse *reverse)
{
	if (reverse->proof != PROOF_GIVEN || client_is_done(connection, reverse))
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
	       reverse->proof == PROOF_GIVEN && numbers->sequence == reverse->acknowledged;
}

/* Updates the proof. Reports whether the flow is proved. */
static __always_inline int prove(const struct packet *packet, const struct tcp_numbers *numbers,
				 struct reverse *reverse)
{
	if (packet->flow.protocol == IPPROTO_TCP) {
		reverse->proof = proof_by_client(reverse, numbers->acknowledged);
		if (reverse->proof == PROOF_CLAIMED) {
			reverse->sequence = numbers->acknowledged;
			reverse->acknowledged = numbers->sequence;
		}
	}
	return reverse->proof == PROOF_GIVEN;
}

/* Moves a flow from the half-open to the established table. */
static __always_inline void establish(const struct packet *packet, const struct frontend *frontend,
				      const struct endpoint *endpoint,
				      const struct connection *connection,
				      const struct reverse *reverse)
{
	struct connection established = *connection;
	struct reverse proved = *reverse;
	const struct flow *flow = &packet->flow;

	if (!half_open_is_still(flow, connection) || !reverse_is_of(&proved, flow))
		return;
	established.flags &= ~(IN_OVERFLOW | OF_DATAGRAMS);
	established.flags |= table_enter(flow, TABLE_ESTABLISHED);
	/* Flows above the quota may be created by a compromised pod. */
	if (!(established.flags & IN_OVERFLOW))
		quota_return(&flow->vip, QUOTA_HALF_OPEN);
	/* The reverse entry comes first: a connection always needs one. */
	if (reverse_add(flow, endpoint, established.flags, &proved))
		return;
	note_established(flow);
	if (connection_add(flow, &established))
		return;
	note_established(flow);
	/* An earlier flow of the client's port had another endpoint. */
	forget(flow);
	/* The packet may also end the connection. */
	if (flow_state(flow->protocol, TABLE_ESTABLISHED, &established, &proved) != FLOW_CLOSED)
		remember(flow, frontend, established.endpoint, established.flags & IN_OVERFLOW);
	/* Last, because another CPU may have just missed the established entry. */
	half_open_delete(flow, endpoint, connection->flags);
	if (frontend->affinity)
		affinity_note(packet, frontend, established.endpoint, established.tag);
}

static __always_inline void reverse_again(const struct packet *packet,
					  const struct frontend *frontend,
					  const struct endpoint *endpoint, enum table table,
					  __u32 flags, const struct tcp_numbers *numbers)
{
	enum proof proof = PROOF_GIVEN;
	struct reverse reverse;

	if (table == TABLE_HALF_OPEN)
		proof = is_midstream(packet) ? PROOF_CLAIMED : PROOF_ASKED;
	reverse = reverse_new(packet, frontend, proof, numbers->acknowledged, numbers->sequence);
	if (table == TABLE_HALF_OPEN)
		half_open_answer_again(&packet->flow, endpoint, flags, &reverse);
	else if (!reverse_add(&packet->flow, endpoint, flags, &reverse))
		note_established(&packet->flow);
}

/* Reports whether a packet of a known flow may change more than counters. */
static __always_inline int is_eventful(const struct packet *packet,
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
	FLOW_IS_CUT_OFF,
	/* The flow has ended or its endpoint is gone, and the packet begins a new flow. */
	FLOW_IS_OVER,
	/* The flow has ended or expired, and the packet may belong to a newer flow on another node.
	 */
	FLOW_IS_STALE,
	/* Neither the flow nor the packet is proved: another node may hold the flow. */
	FLOW_IS_UNPROVED,
	/* The packet belongs to the flow and may change its state. */
	FLOW_IS_TOUCHED,
	/* The packet belongs to the flow. */
	FLOW_GOES_ON,
	/* As FLOW_GOES_ON, but the ingress node has no exception yet. */
	FLOW_WAS_WALKED_TO,
	/* Local frontend: the row's primary must be notified that this node holds the flow. */
	FLOW_IS_HELD,
	/* Local frontend: the row's primary must be notified that the flow has ended. */
	FLOW_HAS_ENDED,
	/* Another frontend's flow has the client's port at the endpoint, or a trace ends. */
	FLOW_IS_CONTESTED,
};

/* Seconds between notices to the row's primary; less than the lifetime of an exception. */
#define TELL_SECONDS 1024

/* Reports whether a notice is due, by time or because the row has moved. */
static __always_inline int is_told_again(const struct packet *packet,
					 const struct frontend *frontend, __u32 seen)
{
	__u32 index = row_index(frontend->table, packet->node_hash), now = clock_now();
	struct group_mark *mark;

	if (now / (TELL_SECONDS * ticks_per_second) != seen / (TELL_SECONDS * ticks_per_second))
		return 1;
	mark = mark_of(index);
	return mark && mark->moved && now - mark->moved <= now - seen;
}

/* Seconds until the last packets of a closed connection have arrived. */
#define LINGER_SECONDS 10

static __always_inline int is_stale(const struct connection *connection, enum flow_state state)
{
	if (state == FLOW_CLOSED)
		return clock_passed(connection->seen, LINGER_SECONDS);
	return flow_expired(state, connection);
}

/* Reports whether neither the half-open flow nor its packet is proved. A spoofed SYN creates such a
 * flow while another node holds the connection. The reverse entry may belong to a flow of another
 * frontend (flow_contested).
 */
static __always_inline int is_unproved(const struct packet *packet,
				       const struct tcp_numbers *numbers,
				       const struct reverse *reverse)
{
	return packet->flow.protocol != IPPROTO_TCP || !reverse ||
	       proof_by_client(reverse, numbers->acknowledged) != PROOF_GIVEN;
}

/* Flags of flow_event. */
enum flow_about {
	/* The flow is in the half-open table. */
	ABOUT_HALF_OPEN = 1,
	/* No other node is left to ask. */
	ABOUT_LAST = 2,
};

static __always_inline enum flow_found flow_found(const struct packet *packet,
						  const struct self *self, enum table table)
{
	return table == TABLE_ESTABLISHED && was_walked_to(packet, self) ? FLOW_WAS_WALKED_TO :
									   FLOW_GOES_ON;
}

/* Updates the flow, whose endpoint exists, by the packet. A stale or unproved flow is updated only
 * if no other node is left to ask.
 *
 * A SYN on a live connection is delivered, and the endpoint replies as in RFC 5961 section 4. SYNs
 * can be spoofed, so they never move a connection.
 */
__noinline int flow_event(struct xdp_md *ctx, const struct packet *packet,
			  const struct frontend *frontend, struct connection *connection, int about)
{
	enum table table = about & ABOUT_HALF_OPEN ? TABLE_HALF_OPEN : TABLE_ESTABLISHED;
	struct tcp_numbers numbers;
	struct endpoint *endpoint;
	int verdict = FLOW_GOES_ON;
	struct reverse *reverse;
	enum flow_state state;
	__u8 protocol;

	if (!packet || !frontend || !connection)
		return FLOW_IS_UNKNOWN;
	protocol = packet->flow.protocol;
	endpoint = endpoint_of(connection);
	/* Another CPU may have changed the entry. */
	if (!endpoint)
		return FLOW_GOES_ON;
	numbers = tcp_numbers(ctx, packet);
	reverse = reverse_find(&packet->flow, endpoint);
	/* In the first case another flow uses the client's port at the endpoint. */
	if (!is_midstream(packet) && ((reverse && !reverse_is_of(reverse, &packet->flow)) ||
				      flow_is_over(protocol, table, connection, reverse)))
		return FLOW_IS_OVER;
	state = flow_state(protocol, table, connection, reverse);
	if (is_midstream(packet) && !(about & ABOUT_LAST)) {
		if (is_stale(connection, state))
			return FLOW_IS_STALE;
		if (table == TABLE_HALF_OPEN && is_unproved(packet, &numbers, reverse))
			return FLOW_IS_UNPROVED;
	}
	/* The proof belongs to the other flow. */
	if (tracing || (reverse && !reverse_is_of(reverse, &packet->flow)))
		return FLOW_IS_CONTESTED;
	if (protocol == IPPROTO_TCP) {
		note_reset(packet, &numbers, connection, reverse);
		if (reverse)
			note_fin(packet, &numbers, connection, reverse);
		if (flow_state(protocol, table, connection, reverse) == FLOW_CLOSED ||
		    is_last_fin(packet, &numbers, reverse)) {
			forget(&packet->flow);
			if (table == TABLE_ESTABLISHED && !(connection->flags & END_TOLD)) {
				connection->flags |= END_TOLD;
				verdict = FLOW_HAS_ENDED;
			}
		}
	}
	if (clock_passed(connection->seen, REFRESH_SECONDS)) {
		if (table == TABLE_ESTABLISHED && !(connection->flags & END_TOLD) &&
		    is_told_again(packet, frontend, connection->seen))
			verdict = FLOW_IS_HELD;
		connection->seen = clock_now();
		if (table == TABLE_HALF_OPEN)
			half_open_use(&packet->flow, connection->flags);
		if (connection->flags & IN_OVERFLOW)
			overflow_use(&packet->flow.vip, table == TABLE_HALF_OPEN ?
								QUOTA_HALF_OPEN :
								quota_of_protocol(protocol));
	}
	if (!reverse)
		reverse_again(packet, frontend, endpoint, table, connection->flags, &numbers);
	else if (is_opening(packet) && reverse->proof == PROOF_CLAIMED)
		/* The SYN-ACK would not match the claim, which is unproved. */
		reverse->proof = PROOF_ASKED;
	else if (table == TABLE_HALF_OPEN && !is_opening(packet) &&
		 prove(packet, &numbers, reverse)) {
		/* The packet may also end the connection. */
		note_fin(packet, &numbers, connection, reverse);
		establish(packet, frontend, endpoint, connection, reverse);
		verdict = FLOW_IS_HELD;
	}
	return frontend->flags & FRONTEND_LOCAL ? verdict : FLOW_GOES_ON;
}

/* Looks up and updates the flow. flow_event is verified once for all tables. */
__noinline int flow_touch(struct xdp_md *ctx, const struct packet *packet, const struct self *self,
			  const struct frontend *frontend, int about)
{
	struct connection *connection;
	enum table table;
	int found;

	if (!packet || !self || !frontend)
		return FLOW_IS_UNKNOWN;
	connection = connection_again(&packet->flow, &table);
	if (!connection)
		return FLOW_GOES_ON;
	if (table == TABLE_HALF_OPEN)
		about |= ABOUT_HALF_OPEN;
	found = flow_event(ctx, packet, frontend, connection, about);
	return found == FLOW_GOES_ON ? flow_found(packet, self, table) : found;
}

/* As flow_touch. The proof is the other flow's until this client acknowledges the SYN-ACK. */
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
	connection = connection_again(&packet->flow, &table);
	if (!connection)
		return FLOW_GOES_ON;
	endpoint = endpoint_of(connection);
	reverse = endpoint ? reverse_find(&packet->flow, endpoint) : NULL;
	if (!reverse || reverse_is_of(reverse, &packet->flow) || table != TABLE_HALF_OPEN ||
	    packet->flow.protocol != IPPROTO_TCP)
		return flow_found(packet, self, table);
	/* The other flow has proved that the connection is its own. */
	if (reverse->proof == PROOF_GIVEN)
		return FLOW_IS_OVER;
	if (tracing || !has_offer(reverse) ||
	    !offer_is_taken(reverse, tcp_numbers(ctx, packet).acknowledged))
		return FLOW_GOES_ON;
	taken = reverse_new(packet, frontend, PROOF_GIVEN, reverse->sequence,
			    reverse->acknowledged);
	establish(packet, frontend, endpoint, connection, &taken);
	return frontend->flags & FRONTEND_LOCAL ? FLOW_IS_HELD : FLOW_GOES_ON;
}

__noinline int flow_notice(struct packet *packet, const struct self *self,
			   const struct frontend *frontend, int found)
{
	if (!packet || !self || !frontend)
		return 0;
	if (found == FLOW_WAS_WALKED_TO)
		return notify_ingress(packet, self, frontend);
	return tell_primary(packet, self, frontend, found == FLOW_IS_HELD ? self->id : 0);
}

__noinline int deliver_chosen(struct xdp_md *ctx, struct packet *packet)
{
	struct endpoint *endpoint = packet ? endpoint_get(packet->endpoint) : NULL;

	return endpoint ? deliver(ctx, packet, endpoint) : drop(DROP_NO_ENDPOINT);
}

/* Looks up the flow. Most packets of known flows are delivered here. For others, and for packets
 * that may change the flow, the result goes to stage2_goes_on.
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
		return is_midstream(packet) ? FLOW_IS_CUT_OFF : FLOW_IS_OVER;
	packet->endpoint = connection->endpoint;
	if (table == TABLE_HALF_OPEN && !half_open_is_still(&packet->flow, connection))
		return FLOW_IS_UNKNOWN;
	if (is_eventful(packet, connection, table))
		return FLOW_IS_TOUCHED;
	if (flow_found(packet, self, table) == FLOW_WAS_WALKED_TO)
		return FLOW_WAS_WALKED_TO;
	return deliver(ctx, packet, endpoint);
}

static __always_inline int serve_unknown(struct xdp_md *ctx, struct packet *packet,
					 const struct self *self, const struct frontend *frontend,
					 enum flow_found found)
{
	__u32 recalled = 0;
	int next, id;

	if (found == FLOW_IS_OVER) {
		flow_remove(&packet->flow);
		/* Else packets of the new flow would be led to the endpoint of the previous one. */
		forget(&packet->flow);
	}
	if (found == FLOW_IS_UNKNOWN && is_from_self(self, &packet->flow))
		return send_elsewhere(packet, self, frontend);
	if ((found == FLOW_IS_UNKNOWN || found == FLOW_IS_UNPROVED) && is_midstream(packet))
		recalled = recall_endpoint(&packet->flow);
	if (!recalled) {
		next = chain_walk(packet, self, frontend);
		if (next > 0)
			return send_to(next);
		if (found == FLOW_IS_CUT_OFF)
			return drop(DROP_ENDPOINT_GONE);
		if (next == SECOND_CHANCE_DENIED) {
			/* Handed-on packets are not lookups, so the limit does not apply to them. */
			next = found == FLOW_IS_UNKNOWN ? hand_on(packet, self, frontend) : 0;
			return next ? send_to(next) : drop(DROP_SECOND_CHANCE_LIMIT);
		}
	}
	if (found == FLOW_IS_STALE ||
	    (found == FLOW_IS_UNPROVED && (!recalled || recalled == packet->endpoint))) {
		flow_touch(ctx, packet, self, frontend, ABOUT_LAST);
		return deliver_chosen(ctx, packet);
	}
	/* The connection of the evicted entry had another endpoint. */
	if (found == FLOW_IS_UNPROVED)
		flow_remove(&packet->flow);
	next = recalled ? 0 : hand_on(packet, self, frontend);
	if (next)
		return send_to(next);
	id = stage2_choose(ctx, packet, frontend, recalled);
	next = id == -DROP_NO_ENDPOINT ? owner_before(packet, self, frontend) : 0;
	if (next > 0)
		return send_to(next);
	if (id < 0)
		return drop(-id);
	packet->endpoint = id;
	return deliver_chosen(ctx, packet);
}

/* Continues after the lookup, when most of the stack is free again. */
static __always_inline int stage2_goes_on(struct xdp_md *ctx, struct packet *packet,
					  const struct self *self, const struct frontend *frontend,
					  enum flow_found found)
{
	int next;

	if (found == FLOW_IS_TOUCHED)
		found = flow_touch(ctx, packet, self, frontend, 0);
	if (found == FLOW_IS_CONTESTED)
		found = flow_contested(ctx, packet, self, frontend);
	if (found < FLOW_IS_TOUCHED)
		return serve_unknown(ctx, packet, self, frontend, found);
	next = found > FLOW_GOES_ON ? flow_notice(packet, self, frontend, found) : 0;
	return next ? send_to(next) : deliver_chosen(ctx, packet);
}
