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

/* Session affinity by client address (Service.spec.sessionAffinity ClientIP). Flows of a client
 * share a hash, so records only matter when the set of endpoints changes.
 *
 * Established flows create records and new flows renew them, as in kube-proxy. Spoofed datagrams
 * and compromised pods can create any number; affinity_table.h isolates VIPs from each other. The
 * key contains the endpoint table, which all VIPs of a Service port share.
 */

struct row_search {
	__u32 table;
	__u32 endpoint;
	/* ENDPOINT_ROWS if no row contains the endpoint. */
	__u32 row;
};

static long row_search_step(__u32 row, struct row_search *search)
{
	if (endpoint_at(endpoint_row_index(search->table, row)) != search->endpoint)
		return 0;
	search->row = row;
	return 1;
}

/* Reports whether the endpoint still has a row, i.e. accepts new connections. */
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

/* Returns an endpoint id or 0. Deletes unusable records, so that SYN floods cannot repeat scans. */
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
