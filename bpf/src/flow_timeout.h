/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "clock.h"
#include "types.h"

/* Flow states and their idle timeouts, counted from the client's last packet. Expired flows count
 * as absent: a packet that may begin a flow gets a new endpoint, and other frontends may reuse the
 * client's port.
 *
 * Mid-stream TCP packets are still delivered to an existing endpoint and renew the entry, because
 * only the endpoint knows the connection's state.
 */

enum table {
	/* connections or datagrams, by protocol. */
	TABLE_ESTABLISHED,
	TABLE_HALF_OPEN,
};

enum flow_state {
	/* TCP without validation, usually in the handshake. */
	FLOW_OPENING,
	FLOW_ESTABLISHED,
	/* One side has sent a FIN; the client's counts once acknowledged by the endpoint. */
	FLOW_CLOSING,
	/* Expires immediately. */
	FLOW_CLOSED,
	/* UDP or SCTP before a reply and a second datagram. */
	FLOW_UNREPLIED,
	FLOW_DATAGRAMS,
};

/* Seconds. RFC 5382 REQ-5 requires 2 h 4 min for established and 4 min for closing TCP connections,
 * RFC 4787 REQ-5 2 min for UDP. SCTP heartbeats are sent every 30 s (RFC 9260 section 16). The
 * opening timeout is below RFC 5382's 4 min, because SYNs can be spoofed; clients retransmit theirs
 * within that time.
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
	case FLOW_UNREPLIED:
		return 10;
	case FLOW_DATAGRAMS:
		return 180;
	default:
		return 0;
	}
}

/* FINs can be spoofed, so the endpoint's acknowledgment decides. */
static __always_inline int client_is_done(const struct connection *connection,
					  const struct reverse *reverse)
{
	return connection->flags & CLIENT_FIN && reverse &&
	       reverse->acknowledged == reverse->sequence;
}

/* reverse may be NULL. */
static __always_inline enum flow_state flow_state(__u8 protocol, enum table table,
						  const struct connection *connection,
						  const struct reverse *reverse)
{
	__u32 server = reverse ? reverse->flags : 0;

	if (protocol != IPPROTO_TCP)
		return table == TABLE_HALF_OPEN ? FLOW_UNREPLIED : FLOW_DATAGRAMS;
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

/* Further queries to the same endpoint get the timeout of FLOW_DATAGRAMS. */
static __always_inline int flow_is_expired(__u8 protocol, enum table table,
					   const struct connection *connection,
					   const struct reverse *reverse)
{
	enum flow_state state = flow_state(protocol, table, connection, reverse);

	return flow_expired(state == FLOW_UNREPLIED ? FLOW_DATAGRAMS : state, connection);
}
