/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "clock.h"
#include "types.h"

/* The states of a flow, and how long each lasts without a packet of the client. A flow
 * that has outlived its state is as good as absent for every choice: a packet
 * that begins a flow gets a new endpoint, and the client's port is free for another
 * frontend. A packet from the middle of a TCP connection still goes to its endpoint if
 * that lives, and renews the entry: only the endpoint knows whether the connection is over.
 */

/* Which of its tables holds a flow. */
enum table {
	/* connections or datagrams, by its protocol. */
	TABLE_ESTABLISHED,
	TABLE_HALF_OPEN,
};

enum flow_state {
	/* TCP, not proved: as a rule a SYN that waits for its handshake. */
	FLOW_OPENING,
	FLOW_ESTABLISHED,
	/* One side has sent its FIN. */
	FLOW_CLOSING,
	/* Both have, or one has reset the connection: over at once. */
	FLOW_CLOSED,
	/* UDP or SCTP without an answer or a second datagram: the client's port may soon
	 * serve another question.
	 */
	FLOW_QUESTION,
	FLOW_DATAGRAMS,
};

/* RFC 5382 REQ-5 asks for at least 2 h 4 min for established TCP and 4 min for closing,
 * RFC 4787 REQ-5 for at least 2 min for UDP; an association of SCTP has heartbeats
 * every 30 s (RFC 9260 section 16). It also asks for 4 min for opening, where
 * we give less: a SYN is the one packet that anybody can send in any number, the
 * client repeats its own within the time, and what it loses is no connection.
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
	if (connection->flags & CLIENT_FIN && server & SERVER_FIN)
		return FLOW_CLOSED;
	if (table == TABLE_HALF_OPEN)
		return FLOW_OPENING;
	if (connection->flags & CLIENT_FIN || server & SERVER_FIN)
		return FLOW_CLOSING;
	return FLOW_ESTABLISHED;
}

static __always_inline int flow_outlived(enum flow_state state, const struct connection *connection)
{
	return clock_passed(connection->seen, idle_seconds(state));
}

/* Whether a packet that may begin a flow does so. A question that was answered may be
 * followed by another one to the same endpoint for as long as datagrams are.
 */
static __always_inline int flow_is_over(__u8 protocol, enum table table,
					const struct connection *connection,
					const struct reverse *reverse)
{
	enum flow_state state = flow_state(protocol, table, connection, reverse);

	return flow_outlived(state == FLOW_QUESTION ? FLOW_DATAGRAMS : state, connection);
}
