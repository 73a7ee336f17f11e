/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "conntrack.h"

/* Counting the flows that live: LRU maps keep no count, and their dead entries stay
 * until the place is needed.
 */
struct census {
	__u64 tcp;
	__u64 udp;
	__u64 half_open;
};

static __always_inline int is_live(const struct connection *connection, __u8 protocol,
				   enum table table)
{
	if (connection->flags & (CLIENT_FIN | CLIENT_RST))
		return 0;
	return !flow_outlived(flow_state(protocol, table, connection, NULL), connection);
}

static __always_inline void census_add(struct census *census, const struct connection *connection,
				       __u8 protocol)
{
	if (!is_live(connection, protocol, TABLE_ESTABLISHED))
		return;
	if (protocol == IPPROTO_TCP)
		census->tcp++;
	else
		census->udp++;
}

static long census4(void *map, struct connection_key4 *key, struct connection *connection,
		    struct census *census)
{
	census_add(census, connection, key->protocol);
	return 0;
}

static long census6(void *map, struct connection_key6 *key, struct connection *connection,
		    struct census *census)
{
	census_add(census, connection, key->protocol);
	return 0;
}

static long census_half_open4(void *map, struct connection_key4 *key,
			      struct connection *connection, struct census *census)
{
	census->half_open += is_live(connection, key->protocol, TABLE_HALF_OPEN);
	return 0;
}

static long census_half_open6(void *map, struct connection_key6 *key,
			      struct connection *connection, struct census *census)
{
	census->half_open += is_live(connection, key->protocol, TABLE_HALF_OPEN);
	return 0;
}
