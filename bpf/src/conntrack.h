/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "clock.h"
#include "maps.h"

/* Which of the two tables of a family holds an entry. */
enum table {
	TABLE_ESTABLISHED,
	TABLE_HALF_OPEN,
};

static __always_inline struct connection_key4 connection_key4(const struct flow *flow)
{
	struct connection_key4 key = {
		.client = flow->client.word[3],
		.vip = flow->vip.word[3],
		.client_port = flow->client_port,
		.vip_port = flow->vip_port,
		.protocol = flow->protocol,
	};

	return key;
}

static __always_inline struct connection_key6 connection_key6(const struct flow *flow)
{
	struct connection_key6 key = {
		.client = flow->client,
		.vip = flow->vip,
		.client_port = flow->client_port,
		.vip_port = flow->vip_port,
		.protocol = flow->protocol,
	};

	return key;
}

static __always_inline struct connection *connection_find(const struct flow *flow, enum table *table)
{
	struct connection *connection;

	*table = TABLE_ESTABLISHED;
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		connection = bpf_map_lookup_elem(&connections4, &key);
		if (connection)
			return connection;
		*table = TABLE_HALF_OPEN;
		return bpf_map_lookup_elem(&half_open4, &key);
	}

	struct connection_key6 key = connection_key6(flow);

	connection = bpf_map_lookup_elem(&connections6, &key);
	if (connection)
		return connection;
	*table = TABLE_HALF_OPEN;
	return bpf_map_lookup_elem(&half_open6, &key);
}

/* Zero, or a negative error. */
static __always_inline long connection_add_half_open(const struct flow *flow,
						     const struct connection *connection)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		return map_update(&half_open4, &key, connection, BPF_ANY);
	}

	struct connection_key6 key = connection_key6(flow);

	return map_update(&half_open6, &key, connection, BPF_ANY);
}

/* Moves an entry to the established ones. On failure it stays where it is. */
static __always_inline void connection_promote(const struct flow *flow,
					       const struct connection *half_open)
{
	struct connection connection = *half_open;

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct connection_key4 key = connection_key4(flow);

		if (!map_update(&connections4, &key, &connection, BPF_ANY))
			map_delete(&half_open4, &key);
		return;
	}

	struct connection_key6 key = connection_key6(flow);

	if (!map_update(&connections6, &key, &connection, BPF_ANY))
		map_delete(&half_open6, &key);
}

static __always_inline struct reverse_key4 reverse_key4(const struct flow *flow,
							const struct endpoint *endpoint)
{
	struct reverse_key4 key = {
		.endpoint = endpoint->address.word[3],
		.client = flow->client.word[3],
		.endpoint_port = endpoint->port,
		.client_port = flow->client_port,
		.protocol = flow->protocol,
	};

	return key;
}

static __always_inline struct reverse_key6 reverse_key6(const struct flow *flow,
							const struct endpoint *endpoint)
{
	struct reverse_key6 key = {
		.endpoint = endpoint->address,
		.client = flow->client,
		.endpoint_port = endpoint->port,
		.client_port = flow->client_port,
		.protocol = flow->protocol,
	};

	return key;
}

static __always_inline struct reverse *reverse_find4(const struct reverse_key4 *key)
{
	struct reverse *reverse = bpf_map_lookup_elem(&reverse4, key);

	return reverse ?: bpf_map_lookup_elem(&half_open_rev4, key);
}

static __always_inline struct reverse *reverse_find6(const struct reverse_key6 *key)
{
	struct reverse *reverse = bpf_map_lookup_elem(&reverse6, key);

	return reverse ?: bpf_map_lookup_elem(&half_open_rev6, key);
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

/* Zero, or a negative error. */
static __always_inline long reverse_add(const struct flow *flow, const struct endpoint *endpoint,
					enum table table, const struct reverse *reverse)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct reverse_key4 key = reverse_key4(flow, endpoint);

		if (table == TABLE_ESTABLISHED)
			return map_update(&reverse4, &key, reverse, BPF_ANY);
		return map_update(&half_open_rev4, &key, reverse, BPF_ANY);
	}

	struct reverse_key6 key = reverse_key6(flow, endpoint);

	if (table == TABLE_ESTABLISHED)
		return map_update(&reverse6, &key, reverse, BPF_ANY);
	return map_update(&half_open_rev6, &key, reverse, BPF_ANY);
}

static __always_inline void reverse_delete_half_open(const struct flow *flow,
						     const struct endpoint *endpoint)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct reverse_key4 key = reverse_key4(flow, endpoint);

		map_delete(&half_open_rev4, &key);
		return;
	}

	struct reverse_key6 key = reverse_key6(flow, endpoint);

	map_delete(&half_open_rev6, &key);
}

/* Whether both sides have ended the connection. */
static __always_inline int connection_closed(const struct connection *connection,
					     const struct reverse *reverse)
{
	if (connection->flags & CLIENT_RST || reverse->flags & SERVER_RST)
		return 1;
	return connection->flags & CLIENT_FIN && reverse->flags & SERVER_FIN;
}

static __always_inline __u32 idle_seconds(__u8 protocol, enum table table)
{
	if (protocol == IPPROTO_TCP)
		return table == TABLE_HALF_OPEN ? TCP_HALF_OPEN_SECONDS : TCP_IDLE_SECONDS;
	return table == TABLE_HALF_OPEN ? UDP_SINGLE_SECONDS : UDP_IDLE_SECONDS;
}
