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
 * SYNs make no record, so they evict none. Spoofed datagrams do, if pods answer them, and a hostile
 * pod can establish connections with any address. So records are in a table in which the clients of
 * one VIP do not evict those of another (affinity_table.h). The key has the frontend's endpoint
 * table, which all VIPs of a Service's port share.
 */

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
	affinity = affinity_record_find(&packet->flow, frontend->endpoints);
	if (!affinity)
		return 0;
	if (clock_passed(affinity->seen, frontend->affinity) ||
	    !affinity_is_usable(frontend, affinity)) {
		affinity_record_delete(&packet->flow, frontend->endpoints);
		return 0;
	}
	if (!tracing)
		affinity->seen = clock_now();
	return affinity->endpoint;
}
