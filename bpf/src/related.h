/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "chain.h"
#include "conntrack.h"
#include "endpoint.h"
#include "fragment_deliver.h"
#include "icmp_deliver.h"
#include "trace.h"
#include "verdict.h"

/* Stage 2 for ICMP errors and later fragments, which follow the chain but create no flow. */
__noinline int stage2_related(struct xdp_md *ctx, struct packet *packet, const struct self *self,
			      const struct frontend *frontend)
{
	struct connection *connection;
	struct endpoint *endpoint;
	enum table table;
	int next;

	if (!packet || !self || !frontend)
		return XDP_ABORTED;
	trace_step(TRACE_STAGE2);
	connection = connection_find(&packet->flow, &table);
	/* Another node may hold the flow, as in stage2. */
	if (!connection || (table == TABLE_HALF_OPEN && packet->flow.protocol != IPPROTO_UDP)) {
		next = forward_lookup(packet, self, frontend);
		if (!next)
			next = delegate(packet, self, frontend);
		if (next == LOOKUP_LIMITED)
			return drop(DROP_LOOKUP_RATE_LIMIT);
		if (next)
			return send_to(next);
		connection = connection_refind(&packet->flow, &table);
	}
	if (connection) {
		trace_step(table == TABLE_HALF_OPEN ? TRACE_HALF_OPEN : TRACE_ESTABLISHED);
		trace_endpoint(connection->endpoint);
		endpoint = endpoint_of(connection);
		if (!endpoint)
			return drop(DROP_ENDPOINT_GONE);
		if (packet->kind == PACKET_LATER_FRAGMENT)
			return fragment_deliver(ctx, packet, endpoint);
		return icmp_deliver(ctx, packet, endpoint);
	}
	return drop(packet->kind == PACKET_LATER_FRAGMENT ? DROP_FIRST_FRAGMENT_MISSING :
							    DROP_ICMP_NO_CONNECTION);
}
