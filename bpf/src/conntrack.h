/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "quota.h"
#include "established_filter.h"
#include "flow_timeout.h"
#include "frontend.h"
#include "half_open.h"
#include "maps.h"
#include "trace.h"

/* Connection tracking: flow table entries.
 *
 * Keys are written in 32-bit words, as the kernel reads them, to avoid failed store forwarding.
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

/* Keeps the lookups of two maps separate, so that the kernel inlines them. */
#define KEEP_APART() asm volatile("" ::: "memory")

/* Some functions are __noinline to limit stack usage. */

/* index is the bucket in the primary table. */
static __noinline struct connection *half_open_connection(const struct flow *flow, __u32 index)
{
	__u64 fingerprint = flow_fingerprint(flow);
	struct half_open *found = half_open_find(index, fingerprint, HALF_OPEN_FORWARD);

	if (!found && vip_overflows(&flow->vip, QUOTA_HALF_OPEN))
		found = half_open_find(half_open_overflow(index), fingerprint, HALF_OPEN_FORWARD);
	return found ? &found->connection : NULL;
}

/* Full memory barrier. */
static __always_inline void read_barrier(void)
{
	__u64 fence = 0;

	__sync_lock_test_and_set(&fence, 1);
}

/* Reports whether the slot still belongs to the flow: writers claim a slot first. */
static __noinline int half_open_is_current(const struct flow *flow, const struct connection *read)
{
	read_barrier();
	return half_open_connection(flow, half_open_place(flow, 0)) == read;
}

static __always_inline enum quota_kind quota_of_protocol(__u8 protocol)
{
	return protocol == IPPROTO_TCP ? QUOTA_CONNECTIONS : QUOTA_DATAGRAMS;
}

static __noinline struct connection *overflow_find(const struct flow *flow)
{
	struct connection_key6 key = connection_key6(flow);
	struct connection *connection;

	if (flow->protocol != IPPROTO_TCP)
		return bpf_map_lookup_elem(&overflow_data, &key);
	connection = bpf_map_lookup_elem(&overflow_conn, &key);
	KEEP_APART();
	return connection;
}

static __noinline struct connection *established_find6(const struct flow *flow)
{
	struct connection_key6 key = connection_key6(flow);
	struct connection *connection;

	if (flow->protocol != IPPROTO_TCP)
		return bpf_map_lookup_elem(&datagrams6, &key);
	connection = bpf_map_lookup_elem(&connections6, &key);
	KEEP_APART();
	return connection;
}

static __always_inline struct connection *established_find4(const struct flow *flow)
{
	struct connection_key4 key = connection_key4(flow);
	struct connection *connection;

	if (flow->protocol != IPPROTO_TCP)
		return bpf_map_lookup_elem(&datagrams4, &key);
	connection = bpf_map_lookup_elem(&connections4, &key);
	KEEP_APART();
	return connection;
}

static __always_inline struct connection *established_find(const struct flow *flow)
{
	struct connection *connection = flow->family == ADDRESS_FAMILY_IPV4 ?
						established_find4(flow) :
						established_find6(flow);

	if (connection || !vip_overflows(&flow->vip, quota_of_protocol(flow->protocol)))
		return connection;
	return overflow_find(flow);
}

static __always_inline struct connection *connection_find(const struct flow *flow,
							  enum table *table)
{
	struct connection *connection = established_find(flow);

	*table = connection ? TABLE_ESTABLISHED : TABLE_HALF_OPEN;
	return connection ?: half_open_connection(flow, half_open_place(flow, 0));
}

static __noinline struct connection *connection_refind(const struct flow *flow, enum table *table)
{
	return connection_find(flow, table);
}

/* For the first packet of a flow, which is usually in no table. */
static __always_inline struct connection *connection_find_new(const struct flow *flow,
							      enum table *table)
{
	__u64 client = client_fingerprint(flow);

	if (may_be_established(client, flow->protocol))
		return connection_find(flow, table);
	*table = TABLE_HALF_OPEN;
	return half_open_connection(flow, half_open_index(client, flow->family, 0));
}

static __always_inline int has_key4(const struct flow *flow, __u32 flags)
{
	return flow->family == ADDRESS_FAMILY_IPV4 && !(flags & IN_OVERFLOW);
}

static __always_inline void *connection_map4(const struct flow *flow)
{
	return flow->protocol == IPPROTO_TCP ? (void *)&connections4 : (void *)&datagrams4;
}

static __always_inline void *connection_map6(const struct flow *flow, __u32 flags)
{
	if (flow->protocol == IPPROTO_TCP)
		return flags & IN_OVERFLOW ? (void *)&overflow_conn : (void *)&connections6;
	return flags & IN_OVERFLOW ? (void *)&overflow_data : (void *)&datagrams6;
}

static __always_inline void *reverse_map4(const struct flow *flow)
{
	return flow->protocol == IPPROTO_TCP ? (void *)&reverse4 : (void *)&datagrams_rev4;
}

static __always_inline void *reverse_map6(const struct flow *flow, __u32 flags)
{
	if (flow->protocol == IPPROTO_TCP)
		return flags & IN_OVERFLOW ? (void *)&overflow_conn_rev : (void *)&reverse6;
	return flags & IN_OVERFLOW ? (void *)&overflow_data_rev : (void *)&datagrams_rev6;
}

static __always_inline __u32 table_enter(const struct flow *flow, enum table table)
{
	enum quota_kind kind =
		table == TABLE_HALF_OPEN ? QUOTA_HALF_OPEN : quota_of_protocol(flow->protocol);

	return quota_take(&flow->vip, kind) ? IN_OVERFLOW : 0;
}

/* Returns 0 or a negative error. */
static __noinline long connection_add(const struct flow *flow, const struct connection *connection)
{
	if (has_key4(flow, connection->flags)) {
		struct connection_key4 key = connection_key4(flow);

		return map_update(connection_map4(flow), &key, connection, BPF_ANY);
	}

	struct connection_key6 key = connection_key6(flow);

	return map_update(connection_map6(flow, connection->flags), &key, connection, BPF_ANY);
}

__noinline int flow_remove(const struct flow *flow)
{
	struct connection *connection;
	enum table table;
	__u32 flags;

	if (!flow)
		return 0;
	connection = connection_find(flow, &table);
	if (!connection)
		return 0;
	flags = connection->flags;
	if (table == TABLE_HALF_OPEN)
		return half_open_update(half_open_place(flow, flags), flow_fingerprint(flow),
					HALF_OPEN_FORWARD, HALF_OPEN_CLEAR);
	if (has_key4(flow, flags)) {
		struct connection_key4 key = connection_key4(flow);

		map_delete(connection_map4(flow), &key);
		return 0;
	}

	struct connection_key6 key = connection_key6(flow);

	map_delete(connection_map6(flow, flags), &key);
	return 0;
}

/* ports are the endpoint's and the client's, as in a reply's header. */
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

static __always_inline void reverse_key6_ends(struct reverse_key6 *key, __u32 ports, __u8 protocol)
{
	const __u32 words[] = { ports, protocol };

	_Static_assert(offsetof(struct reverse_key6, endpoint_port) + sizeof(words) == sizeof(*key),
		       "words of the key");
	__builtin_memcpy(&key->endpoint_port, words, sizeof(words));
}

static __always_inline struct reverse_key6 reverse_key6(const struct flow *flow,
							const struct endpoint *endpoint)
{
	struct reverse_key6 key = { .endpoint = endpoint->address, .client = flow->client };

	reverse_key6_ends(&key, two_ports(endpoint->port, flow->client_port), flow->protocol);
	return key;
}

/* A reply does not show its VIP, whose quota is therefore unknown. */
static __always_inline struct reverse *half_open_reverse_in(__u32 index, __u64 fingerprint)
{
	struct half_open *found = half_open_find(index, fingerprint, HALF_OPEN_REVERSE);

	if (!found && any_overflows(QUOTA_HALF_OPEN))
		found = half_open_find(half_open_overflow(index), fingerprint, HALF_OPEN_REVERSE);
	return found ? &found->reverse : NULL;
}

/* Returns 0 if the slot was reused meanwhile; above HALF_OPEN_SLOTS is the overflow table. */
__noinline int half_open_find_reverse(__u32 index, __u64 fingerprint, struct reverse *copy)
{
	struct half_open_bucket *bucket = bpf_map_lookup_elem(&half_open_flows, &index);
	__u32 place = bucket ? half_open_place_in(bucket, fingerprint, HALF_OPEN_REVERSE) : 0,
	      table = 0;

	if (!place && any_overflows(QUOTA_HALF_OPEN)) {
		index = half_open_overflow(index);
		table = HALF_OPEN_SLOTS + 1;
		bucket = bpf_map_lookup_elem(&half_open_flows, &index);
		place = bucket ? half_open_place_in(bucket, fingerprint, HALF_OPEN_REVERSE) : 0;
	}
	place = half_open_bounded(place);
	if (!bucket || !place)
		return 0;
	if (copy) {
		*copy = half_open_at(bucket, place)->reverse;
		read_barrier();
		if (!half_open_is(*half_open_mark(bucket, place), half_open_at(bucket, place),
				  fingerprint, HALF_OPEN_REVERSE))
			return 0;
	}
	return table + place;
}

/* Returns NULL if the slot was reused during the copy. */
static __noinline struct reverse *half_open_reverse(__u32 index, __u64 fingerprint,
						    struct reverse *copy)
{
	__u32 place = half_open_find_reverse(index, fingerprint, copy);
	struct half_open_bucket *bucket;

	if (!place)
		return NULL;
	if (place > HALF_OPEN_SLOTS)
		index = half_open_overflow(index);
	bucket = bpf_map_lookup_elem(&half_open_flows, &index);
	place = half_open_bounded(place);
	return bucket && place ? &half_open_at(bucket, place)->reverse : NULL;
}

static __always_inline struct reverse *overflow_reverse(const struct reverse_key6 *key)
{
	struct reverse *reverse;

	if (key->protocol != IPPROTO_TCP)
		return bpf_map_lookup_elem(&overflow_data_rev, key);
	reverse = bpf_map_lookup_elem(&overflow_conn_rev, key);
	KEEP_APART();
	return reverse;
}

static __noinline struct reverse *overflow_reverse4(const struct reverse_key4 *key)
{
	struct reverse_key6 mapped = {};

	address_set_ipv4(&mapped.endpoint, key->endpoint);
	address_set_ipv4(&mapped.client, key->client);
	reverse_key6_ends(&mapped, two_ports(key->endpoint_port, key->client_port), key->protocol);
	return overflow_reverse(&mapped);
}

static __always_inline struct reverse *established_reverse4(const struct reverse_key4 *key)
{
	struct reverse *reverse;

	if (key->protocol == IPPROTO_TCP) {
		reverse = bpf_map_lookup_elem(&reverse4, key);
		KEEP_APART();
	} else {
		reverse = bpf_map_lookup_elem(&datagrams_rev4, key);
		KEEP_APART();
	}
	if (reverse || !any_overflows(quota_of_protocol(key->protocol)))
		return reverse;
	return overflow_reverse4(key);
}

static __always_inline __u32 reverse_index4(const struct reverse_key4 *key)
{
	return half_open_index4(key->client, key->client_port, key->protocol, 0);
}

static __always_inline __u64 reverse_fingerprint4(const struct reverse_key4 *key)
{
	return flow_fingerprint4(key->client, key->endpoint,
				 two_ports(key->client_port, key->endpoint_port), key->protocol);
}

/* copy may be NULL. */
static __always_inline struct reverse *reverse_find4(const struct reverse_key4 *key,
						     struct reverse *copy)
{
	struct reverse *reverse = established_reverse4(key);

	if (!reverse)
		return half_open_reverse(reverse_index4(key), reverse_fingerprint4(key), copy);
	if (copy)
		*copy = *reverse;
	return reverse;
}

static __always_inline int reverse_copy4(const struct reverse_key4 *key, struct reverse *copy)
{
	struct reverse *reverse = established_reverse4(key);

	if (!reverse)
		return half_open_find_reverse(reverse_index4(key), reverse_fingerprint4(key), copy);
	*copy = *reverse;
	return 1;
}

static __always_inline struct reverse *established_reverse6(const struct reverse_key6 *key)
{
	struct reverse *reverse;

	if (key->protocol == IPPROTO_TCP) {
		reverse = bpf_map_lookup_elem(&reverse6, key);
		KEEP_APART();
	} else {
		reverse = bpf_map_lookup_elem(&datagrams_rev6, key);
		KEEP_APART();
	}
	if (reverse || !any_overflows(quota_of_protocol(key->protocol)))
		return reverse;
	return overflow_reverse(key);
}

static __always_inline __u32 reverse_index6(const struct reverse_key6 *key)
{
	return half_open_index6(key->client.word, key->client_port, key->protocol, 0);
}

static __always_inline __u64 reverse_fingerprint6(const struct reverse_key6 *key)
{
	return flow_fingerprint6(key->client.word, key->endpoint.word,
				 two_ports(key->client_port, key->endpoint_port), key->protocol);
}

static __always_inline struct reverse *reverse_find6(const struct reverse_key6 *key,
						     struct reverse *copy)
{
	struct reverse *reverse = established_reverse6(key);

	if (!reverse)
		return half_open_reverse(reverse_index6(key), reverse_fingerprint6(key), copy);
	if (copy)
		*copy = *reverse;
	return reverse;
}

static __always_inline int reverse_copy6(const struct reverse_key6 *key, struct reverse *copy)
{
	struct reverse *reverse = established_reverse6(key);

	if (!reverse)
		return half_open_find_reverse(reverse_index6(key), reverse_fingerprint6(key), copy);
	*copy = *reverse;
	return 1;
}

static __noinline struct reverse *half_open_reverse_at(const struct flow *flow,
						       const struct endpoint *endpoint, __u32 index)
{
	return half_open_reverse_in(index, half_open_reverse_fingerprint(flow, endpoint));
}

static __noinline struct reverse *half_open_reverse_of(const struct flow *flow,
						       const struct endpoint *endpoint)
{
	return half_open_reverse_in(half_open_place(flow, 0),
				    half_open_reverse_fingerprint(flow, endpoint));
}

static __always_inline struct reverse *reverse_find(const struct flow *flow,
						    const struct endpoint *endpoint)
{
	struct reverse *reverse;

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct reverse_key4 key = reverse_key4(flow, endpoint);

		reverse = established_reverse4(&key);
	} else {
		struct reverse_key6 key = reverse_key6(flow, endpoint);

		reverse = established_reverse6(&key);
	}
	return reverse ?: half_open_reverse_of(flow, endpoint);
}

/* For a flow that is usually in no table. */
static __always_inline struct reverse *reverse_find_new(const struct flow *flow,
							const struct endpoint *endpoint)
{
	__u64 client = client_fingerprint(flow);

	if (may_be_established(client, flow->protocol))
		return reverse_find(flow, endpoint);
	return half_open_reverse_at(flow, endpoint, half_open_index(client, flow->family, 0));
}

/* flags are those of the forward entry. Returns 0 or a negative error. */
static __noinline long reverse_add(const struct flow *flow, const struct endpoint *endpoint,
				   __u32 flags, const struct reverse *reverse)
{
	if (has_key4(flow, flags)) {
		struct reverse_key4 key = reverse_key4(flow, endpoint);

		return map_update(reverse_map4(flow), &key, reverse, BPF_ANY);
	}

	struct reverse_key6 key = reverse_key6(flow, endpoint);

	return map_update(reverse_map6(flow, flags), &key, reverse, BPF_ANY);
}

/* flags are those of the half-open entry. */
static __always_inline void half_open_delete(const struct flow *flow,
					     const struct endpoint *endpoint, __u32 flags)
{
	__u32 index = half_open_place(flow, flags);

	half_open_update(index, half_open_reverse_fingerprint(flow, endpoint), HALF_OPEN_REVERSE,
			 HALF_OPEN_CLEAR);
	half_open_update(index, flow_fingerprint(flow), HALF_OPEN_FORWARD, HALF_OPEN_CLEAR);
}

/* Deletes the entry with the flow's reverse key from all tables, whichever flow owns it. */
static __noinline void reverse_delete(const struct flow *flow, const struct endpoint *endpoint)
{
	struct reverse_key6 key;
	__u32 index;
	__u64 fingerprint;

	if (!endpoint)
		return;
	key = reverse_key6(flow, endpoint);
	map_delete(reverse_map6(flow, IN_OVERFLOW), &key);
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct reverse_key4 key4 = reverse_key4(flow, endpoint);

		map_delete(reverse_map4(flow), &key4);
	} else {
		map_delete(reverse_map6(flow, 0), &key);
	}
	index = half_open_place(flow, 0);
	fingerprint = half_open_reverse_fingerprint(flow, endpoint);
	half_open_update(index, fingerprint, HALF_OPEN_REVERSE, HALF_OPEN_CLEAR);
	half_open_update(half_open_overflow(index), fingerprint, HALF_OPEN_REVERSE,
			 HALF_OPEN_CLEAR);
}

static __always_inline void half_open_use(const struct flow *flow, __u32 flags)
{
	half_open_update(half_open_place(flow, flags), flow_fingerprint(flow), HALF_OPEN_FORWARD,
			 HALF_OPEN_RENEW);
}

/* flags are those of the forward entry. */
static __noinline void half_open_restore_reverse(const struct flow *flow,
						 const struct endpoint *endpoint, __u32 flags,
						 const struct reverse *reverse)
{
	half_open_put_reverse(half_open_place(flow, flags), flow_fingerprint(flow),
			      half_open_reverse_fingerprint(flow, endpoint), reverse);
}
