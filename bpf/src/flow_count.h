/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "conntrack.h"

/* Number of live flows. LRU maps have no counter, and expired entries stay until evicted. */
struct flow_counts {
	__u64 tcp;
	__u64 udp;
	__u64 half_open;
};

static __always_inline int is_live(const struct connection *connection, __u8 protocol,
				   enum table table)
{
	if (connection->flags & (CLIENT_FIN | CLIENT_RST))
		return 0;
	return !flow_expired(flow_state(protocol, table, connection, NULL), connection);
}

static __always_inline void count_established(struct flow_counts *counts,
					      const struct connection *connection, __u8 protocol)
{
	if (!is_live(connection, protocol, TABLE_ESTABLISHED))
		return;
	if (protocol == IPPROTO_TCP)
		counts->tcp++;
	else
		counts->udp++;
}

/* bpf_for_each_map_elem() callbacks. */

static long count_established4(void *map, struct connection_key4 *key,
			       struct connection *connection, struct flow_counts *counts)
{
	count_established(counts, connection, key->protocol);
	return 0;
}

static long count_established6(void *map, struct connection_key6 *key,
			       struct connection *connection, struct flow_counts *counts)
{
	count_established(counts, connection, key->protocol);
	return 0;
}

static long count_half_open(void *map, __u32 *key, struct half_open_bucket *bucket,
			    struct flow_counts *counts)
{
	for (int i = 0; i < HALF_OPEN_SLOTS; i++) {
		const struct connection *connection = &bucket->slot[i].connection;
		__u8 protocol = connection->flags & OF_DATAGRAMS ? IPPROTO_UDP : IPPROTO_TCP;

		if (bucket->mark[i] & HALF_OPEN_TAG && bucket->mark[i] != HALF_OPEN_CLAIMED)
			counts->half_open += is_live(connection, protocol, TABLE_HALF_OPEN);
	}
	return 0;
}
