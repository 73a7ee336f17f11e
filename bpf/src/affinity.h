/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "affinity_table.h"
#include "clock.h"
#include "conntrack.h"
#include "endpoint.h"
#include "maps.h"
#include "row.h"
#include "trace.h"

/* Session affinity by client address (Service.spec.sessionAffinity ClientIP). All flows of a
 * client have one hash: they get to one node and there to one endpoint without a record. A
 * record keeps the endpoint when the endpoints change.
 *
 * An established flow makes the record, and each new flow renews it, as in kube-proxy. Spoofed
 * SYNs make no record, so they evict none. Spoofed datagrams do, where pods answer them: what is
 * not TCP has a table in which one VIP's clients do not drive out another's (affinity_table.h). The
 * key has the frontend's endpoint table, which all VIPs of a Service's port share.
 */

static __always_inline struct affinity_key4 affinity_key4(const struct flow *flow,
							  const struct frontend *frontend)
{
	struct affinity_key4 key = {
		.client = flow->client.word[3],
		.endpoint_table = frontend->endpoints,
	};

	return key;
}

static __always_inline struct affinity_key6 affinity_key6(const struct flow *flow,
							  const struct frontend *frontend)
{
	struct affinity_key6 key = {
		.client = flow->client,
		.endpoint_table = frontend->endpoints,
	};

	return key;
}

static __always_inline struct affinity *connection_affinity_find(const struct flow *flow,
								 const struct frontend *frontend)
{
	struct affinity *affinity;

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct affinity_key4 key = affinity_key4(flow, frontend);

		return bpf_map_lookup_elem(&affinities4, &key);
	}

	struct affinity_key6 key = affinity_key6(flow, frontend);

	affinity = bpf_map_lookup_elem(&affinities6, &key);
	KEEP_APART();
	return affinity;
}

static __always_inline struct affinity *affinity_find(const struct flow *flow,
						      const struct frontend *frontend)
{
	if (flow->protocol == IPPROTO_TCP)
		return connection_affinity_find(flow, frontend);
	return data_affinity_find(&flow->client, frontend->endpoints);
}

static __always_inline void affinity_add(const struct flow *flow, const struct frontend *frontend,
					 const struct affinity *affinity)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct affinity_key4 key = affinity_key4(flow, frontend);

		map_update(&affinities4, &key, affinity, BPF_ANY);
		return;
	}

	struct affinity_key6 key = affinity_key6(flow, frontend);

	map_update(&affinities6, &key, affinity, BPF_ANY);
}

static __always_inline void affinity_delete(const struct flow *flow,
					    const struct frontend *frontend)
{
	if (flow->protocol != IPPROTO_TCP) {
		data_affinity_delete(&flow->client, frontend->endpoints);
		return;
	}
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct affinity_key4 key = affinity_key4(flow, frontend);

		map_delete(&affinities4, &key);
		return;
	}

	struct affinity_key6 key = affinity_key6(flow, frontend);

	map_delete(&affinities6, &key);
}

/* A search for a row of an endpoint in an endpoint table. */
struct row_search {
	__u32 table;
	__u32 endpoint;
	/* ENDPOINT_ROWS where there is none. */
	__u32 row;
};

/* Ends the search by returning 1. */
static long row_search_step(__u32 row, struct row_search *search)
{
	if (endpoint_at(endpoint_row_index(search->table, row)) != search->endpoint)
		return 0;
	search->row = row;
	return 1;
}

/* Reports whether the record's endpoint takes new connections of the frontend: whether it has a
 * row. The last one that it was found in mostly still is its own.
 */
static __always_inline int affinity_is_usable(const struct frontend *frontend,
					      struct affinity *affinity)
{
	struct row_search search = {
		.table = frontend->endpoints,
		.endpoint = affinity->endpoint,
		.row = ENDPOINT_ROWS,
	};
	struct endpoint *endpoint = endpoint_get(affinity->endpoint);

	if (!endpoint || endpoint->tag != affinity->tag)
		return 0;
	if (endpoint_at(endpoint_row_index(search.table, affinity->row)) == affinity->endpoint)
		return 1;
	bpf_loop(ENDPOINT_ROWS, row_search_step, &search, 0);
	if (search.row == ENDPOINT_ROWS)
		return 0;
	if (!tracing)
		affinity->row = search.row;
	return 1;
}

/* The id of the endpoint that the client's last connections had, or zero. A useless record is
 * deleted: spoofed SYNs must not repeat the search for a row.
 */
__noinline __u32 affinity_endpoint(const struct packet *packet, const struct frontend *frontend)
{
	struct affinity *affinity;

	if (!packet || !frontend)
		return 0;
	affinity = affinity_find(&packet->flow, frontend);
	if (!affinity)
		return 0;
	if (clock_passed(affinity->seen, frontend->affinity) ||
	    !affinity_is_usable(frontend, affinity)) {
		affinity_delete(&packet->flow, frontend);
		return 0;
	}
	if (!tracing)
		affinity->seen = clock_now();
	return affinity->endpoint;
}

/* Notes the endpoint of an established connection of TCP. */
__noinline int connection_affinity_note(const struct packet *packet,
					const struct frontend *frontend, __u32 id, __u32 tag)
{
	struct affinity *old, affinity = { .endpoint = id, .tag = tag, .seen = clock_now() };

	if (!packet || !frontend)
		return 0;
	affinity.row = packet->endpoint_hash >> ENDPOINT_ROW_SHIFT;
	old = connection_affinity_find(&packet->flow, frontend);
	if (!old) {
		affinity_add(&packet->flow, frontend, &affinity);
		return 0;
	}
	if (tracing)
		return 0;
	if (old->endpoint == id && old->tag == tag)
		affinity.row = old->row;
	*old = affinity;
	return 0;
}

/* Notes the endpoint of an established flow. */
static __always_inline void affinity_note(const struct packet *packet,
					  const struct frontend *frontend, __u32 id, __u32 tag)
{
	if (packet->flow.protocol == IPPROTO_TCP)
		connection_affinity_note(packet, frontend, id, tag);
	else
		data_affinity_note(packet, frontend, id, tag);
}
