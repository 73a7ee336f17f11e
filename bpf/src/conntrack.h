/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "crowd.h"
#include "flow_timeout.h"
#include "frontend.h"
#include "maps.h"
#include "trace.h"

/* Connection tracking: entries of the tables of flows.
 *
 * Keys are written by words, as the kernel reads them. A load of a word that was just stored in
 * parts has to wait for all of them.
 */

static __always_inline struct connection_key4 connection_key4(const struct flow *flow)
{
	const __u32 words[] = {
		flow->client.word[3],
		flow->vip.word[3],
		two_ports(flow->client_port, flow->vip_port),
		flow->protocol,
	};
	struct connection_key4 key;

	_Static_assert(sizeof(words) == sizeof(key), "words of the key");
	__builtin_memcpy(&key, words, sizeof(key));
	return key;
}

static __always_inline struct connection_key6 connection_key6(const struct flow *flow)
{
	const __u32 words[] = {
		two_ports(flow->client_port, flow->vip_port),
		flow->protocol,
	};
	struct connection_key6 key = { .client = flow->client, .vip = flow->vip };

	__builtin_memcpy(&key.client_port, words, sizeof(words));
	return key;
}

/* Keeps the compiler from merging the lookups of two maps into one, which the kernel could
 * no longer inline.
 */
#define KEEP_APART() asm volatile("" ::: "memory")

/* The entries of VIPs that are or were crowded. Apart, for they need stack. */

static __noinline struct connection *crowded_datagrams(const struct flow *flow)
{
	if (flow->protocol == IPPROTO_TCP || !vip_is_asked(&flow->vip, CROWD_DATAGRAMS))
		return NULL;
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		return bpf_map_lookup_elem(&crowd_data4, &key);
	}

	struct connection_key6 key = connection_key6(flow);

	return bpf_map_lookup_elem(&crowd_data6, &key);
}

static __noinline struct connection *crowded_half_open(const struct flow *flow)
{
	if (!vip_is_asked(&flow->vip, CROWD_HALF_OPEN))
		return NULL;
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		return bpf_map_lookup_elem(&crowd_open4, &key);
	}

	struct connection_key6 key = connection_key6(flow);

	return bpf_map_lookup_elem(&crowd_open6, &key);
}

static __always_inline struct connection *main_table_find(const struct flow *flow,
							  enum table *table)
{
	struct connection *connection;

	*table = TABLE_ESTABLISHED;
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		if (flow->protocol == IPPROTO_TCP) {
			connection = bpf_map_lookup_elem(&connections4, &key);
			KEEP_APART();
		} else {
			connection = bpf_map_lookup_elem(&datagrams4, &key);
		}
		if (connection)
			return connection;
		*table = TABLE_HALF_OPEN;
		return bpf_map_lookup_elem(&half_open4, &key);
	}

	struct connection_key6 key = connection_key6(flow);

	if (flow->protocol == IPPROTO_TCP) {
		connection = bpf_map_lookup_elem(&connections6, &key);
		KEEP_APART();
	} else {
		connection = bpf_map_lookup_elem(&datagrams6, &key);
	}
	if (connection)
		return connection;
	*table = TABLE_HALF_OPEN;
	return bpf_map_lookup_elem(&half_open6, &key);
}

static __always_inline struct connection *connection_find(const struct flow *flow,
							  enum table *table)
{
	struct connection *connection = main_table_find(flow, table);

	if (connection)
		return connection;
	connection = crowded_datagrams(flow);
	*table = connection ? TABLE_ESTABLISHED : TABLE_HALF_OPEN;
	return connection ?: crowded_half_open(flow);
}

/* The map of a flow's entry, and of its reverse entry, in the table. flags has IN_CROWD for the
 * second table; there is none of established TCP.
 */

static __always_inline void *connection_map(const struct flow *flow, enum table table, __u32 flags)
{
	const int is_crowd = flags & IN_CROWD;

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		if (table == TABLE_HALF_OPEN)
			return is_crowd ? (void *)&crowd_open4 : (void *)&half_open4;
		if (flow->protocol == IPPROTO_TCP)
			return &connections4;
		return is_crowd ? (void *)&crowd_data4 : (void *)&datagrams4;
	}
	if (table == TABLE_HALF_OPEN)
		return is_crowd ? (void *)&crowd_open6 : (void *)&half_open6;
	if (flow->protocol == IPPROTO_TCP)
		return &connections6;
	return is_crowd ? (void *)&crowd_data6 : (void *)&datagrams6;
}

static __always_inline void *reverse_map(const struct flow *flow, enum table table, __u32 flags)
{
	const int is_crowd = flags & IN_CROWD;

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		if (table == TABLE_HALF_OPEN)
			return is_crowd ? (void *)&crowd_open_rev4 : (void *)&half_open_rev4;
		if (flow->protocol == IPPROTO_TCP)
			return &reverse4;
		return is_crowd ? (void *)&crowd_data_rev4 : (void *)&datagrams_rev4;
	}
	if (table == TABLE_HALF_OPEN)
		return is_crowd ? (void *)&crowd_open_rev6 : (void *)&half_open_rev6;
	if (flow->protocol == IPPROTO_TCP)
		return &reverse6;
	return is_crowd ? (void *)&crowd_data_rev6 : (void *)&datagrams_rev6;
}

/* Counts a new entry of the flow in the table. Returns IN_CROWD where it goes to the second. */
static __always_inline __u32 table_enter(const struct flow *flow, enum table table)
{
	enum crowd_kind kind = table == TABLE_HALF_OPEN ? CROWD_HALF_OPEN : CROWD_DATAGRAMS;

	if (table == TABLE_ESTABLISHED && flow->protocol == IPPROTO_TCP)
		return 0;
	return crowd_enter(&flow->vip, kind) ? IN_CROWD : 0;
}

/* Zero, or a negative error. */
static __always_inline long connection_add(const struct flow *flow, enum table table,
					   const struct connection *connection)
{
	void *map = connection_map(flow, table, connection->flags);

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		return map_update(map, &key, connection, BPF_ANY);
	}

	struct connection_key6 key = connection_key6(flow);

	return map_update(map, &key, connection, BPF_ANY);
}

/* flags are those of the entry. */
static __always_inline void connection_delete(const struct flow *flow, enum table table,
					      __u32 flags)
{
	void *map = connection_map(flow, table, flags);

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		map_delete(map, &key);
		return;
	}

	struct connection_key6 key = connection_key6(flow);

	map_delete(map, &key);
}

/* ports are the endpoint's and the client's, as in the header of a reply. */
static __always_inline struct reverse_key4 reverse_key4_of(__be32 endpoint, __be32 client,
							   __u32 ports, __u8 protocol)
{
	const __u32 words[] = { endpoint, client, ports, protocol };
	struct reverse_key4 key;

	_Static_assert(sizeof(words) == sizeof(key), "words of the key");
	__builtin_memcpy(&key, words, sizeof(key));
	return key;
}

static __always_inline struct reverse_key4 reverse_key4(const struct flow *flow,
							const struct endpoint *endpoint)
{
	return reverse_key4_of(endpoint->address.word[3], flow->client.word[3],
			       two_ports(endpoint->port, flow->client_port), flow->protocol);
}

static __always_inline struct reverse_key6 reverse_key6(const struct flow *flow,
							const struct endpoint *endpoint)
{
	const __u32 words[] = {
		two_ports(endpoint->port, flow->client_port),
		flow->protocol,
	};
	struct reverse_key6 key = { .endpoint = endpoint->address, .client = flow->client };

	__builtin_memcpy(&key.endpoint_port, words, sizeof(words));
	return key;
}

/* The entry of a VIP that is or was crowded. Which one, a reply does not show. */
static __always_inline struct reverse *crowded_reverse4(const struct reverse_key4 *key)
{
	struct reverse *reverse = NULL;

	if (key->protocol != IPPROTO_TCP && any_is_asked(CROWD_DATAGRAMS))
		reverse = bpf_map_lookup_elem(&crowd_data_rev4, key);
	KEEP_APART();
	if (reverse || !any_is_asked(CROWD_HALF_OPEN))
		return reverse;
	return bpf_map_lookup_elem(&crowd_open_rev4, key);
}

static __always_inline struct reverse *crowded_reverse6(const struct reverse_key6 *key)
{
	struct reverse *reverse = NULL;

	if (key->protocol != IPPROTO_TCP && any_is_asked(CROWD_DATAGRAMS))
		reverse = bpf_map_lookup_elem(&crowd_data_rev6, key);
	KEEP_APART();
	if (reverse || !any_is_asked(CROWD_HALF_OPEN))
		return reverse;
	return bpf_map_lookup_elem(&crowd_open_rev6, key);
}

static __always_inline struct reverse *reverse_find4(const struct reverse_key4 *key)
{
	struct reverse *reverse;

	if (key->protocol == IPPROTO_TCP) {
		reverse = bpf_map_lookup_elem(&reverse4, key);
		KEEP_APART();
	} else {
		reverse = bpf_map_lookup_elem(&datagrams_rev4, key);
	}
	reverse = reverse ?: bpf_map_lookup_elem(&half_open_rev4, key);
	return reverse ?: crowded_reverse4(key);
}

static __always_inline struct reverse *reverse_find6(const struct reverse_key6 *key)
{
	struct reverse *reverse;

	if (key->protocol == IPPROTO_TCP) {
		reverse = bpf_map_lookup_elem(&reverse6, key);
		KEEP_APART();
	} else {
		reverse = bpf_map_lookup_elem(&datagrams_rev6, key);
	}
	reverse = reverse ?: bpf_map_lookup_elem(&half_open_rev6, key);
	return reverse ?: crowded_reverse6(key);
}

static __always_inline struct reverse *reverse_find(const struct flow *flow,
						    const struct endpoint *endpoint)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct reverse_key4 key = reverse_key4(flow, endpoint);

		return reverse_find4(&key);
	}

	struct reverse_key6 key = reverse_key6(flow, endpoint);

	return reverse_find6(&key);
}

/* flags are those of the flow's other entry. Zero, or a negative error. */
static __always_inline long reverse_add(const struct flow *flow, const struct endpoint *endpoint,
					enum table table, __u32 flags,
					const struct reverse *reverse)
{
	void *map = reverse_map(flow, table, flags);

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct reverse_key4 key = reverse_key4(flow, endpoint);

		return map_update(map, &key, reverse, BPF_ANY);
	}

	struct reverse_key6 key = reverse_key6(flow, endpoint);

	return map_update(map, &key, reverse, BPF_ANY);
}

static __always_inline void reverse_delete(const struct flow *flow,
					   const struct endpoint *endpoint, enum table table,
					   __u32 flags)
{
	void *map = reverse_map(flow, table, flags);

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct reverse_key4 key = reverse_key4(flow, endpoint);

		map_delete(map, &key);
		return;
	}

	struct reverse_key6 key = reverse_key6(flow, endpoint);

	map_delete(map, &key);
}
