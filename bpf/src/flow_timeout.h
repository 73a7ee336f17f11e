/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "clock.h"
#include "types.h"

/* The states of a flow, and the idle timeout of each: how long it lasts without a packet of
 * the client. Expired flows are treated as absent: a packet that begins a flow gets a new
 * endpoint, and the client's port is free for another frontend.
 *
 * A midstream packet of TCP still goes to its endpoint if that exists, and renews the entry:
 * only the endpoint knows whether the connection is over.
 */

/* Which table holds a flow. */
enum table {
	/* connections or datagrams, by its protocol. */
	TABLE_ESTABLISHED,
	TABLE_HALF_OPEN,
};

enum flow_state {
	/* TCP without proof, as a rule a SYN in its handshake. */
	FLOW_OPENING,
	FLOW_ESTABLISHED,
	/* One side has sent its FIN. The client's counts once the endpoint has taken it. */
	FLOW_CLOSING,
	/* Both have, or one has reset the connection: over at once. */
	FLOW_CLOSED,
	/* UDP or SCTP before an answer and a second datagram: the client's port may soon have
	 * another question.
	 */
	FLOW_QUESTION,
	FLOW_DATAGRAMS,
};

/* RFC 5382 REQ-5 asks for at least 2 h 4 min for established TCP and 4 min for closing, RFC
 * 4787 REQ-5 for at least 2 min for UDP. SCTP sends heartbeats every 30 s (RFC 9260 section
 * 16). RFC 5382 also asks for 4 min for opening. Here it is less, because SYNs can be spoofed:
 * a client repeats its SYN in that time, and loses no connection.
 */
static __always_inline __u32 idle_seconds(enum flow_state state)
{
	switch (state) {
	case FLOW_OPENING:
		return 60;
	case FLOW_ESTABLISHED:
		return 7500;
	case FLOW_CLOSING:
		return 240;
	case FLOW_QUESTION:
		return 10;
	case FLOW_DATAGRAMS:
		return 180;
	default:
		return 0;
	}
}

/* Reports whether the endpoint has taken the client's FIN. FINs can be spoofed: the endpoint
 * acknowledges no number that the client has not reached. After a FIN no other number comes.
 */
static __always_inline int client_is_done(const struct connection *connection,
					  const struct reverse *reverse)
{
	return connection->flags & CLIENT_FIN && reverse &&
	       reverse->acknowledged == reverse->sequence;
}

/* The state of a flow. reverse may be NULL. */
static __always_inline enum flow_state flow_state(__u8 protocol, enum table table,
						  const struct connection *connection,
						  const struct reverse *reverse)
{
	__u32 server = reverse ? reverse->flags : 0;

	if (protocol != IPPROTO_TCP)
		return table == TABLE_HALF_OPEN ? FLOW_QUESTION : FLOW_DATAGRAMS;
	if (connection->flags & CLIENT_RST || server & SERVER_RST)
		return FLOW_CLOSED;
	if (client_is_done(connection, reverse) && server & SERVER_FIN)
		return FLOW_CLOSED;
	if (table == TABLE_HALF_OPEN)
		return FLOW_OPENING;
	if (client_is_done(connection, reverse) || server & SERVER_FIN)
		return FLOW_CLOSING;
	return FLOW_ESTABLISHED;
}

static __always_inline int flow_expired(enum flow_state state, const struct connection *connection)
{
	return clock_passed(connection->seen, idle_seconds(state));
}

/* Reports whether a packet that may begin a flow does so. A question may be followed by another
 * one to the same endpoint for as long as datagrams may.
 */
static __always_inline int flow_is_over(__u8 protocol, enum table table,
					const struct connection *connection,
					const struct reverse *reverse)
{
	enum flow_state state = flow_state(protocol, table, connection, reverse);

	return flow_expired(state == FLOW_QUESTION ? FLOW_DATAGRAMS : state, connection);
}
