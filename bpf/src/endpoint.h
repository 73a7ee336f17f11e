/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"

/* Endpoints on this node. */

static __always_inline struct endpoint *endpoint_get(__u32 id)
{
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, &id);

	return endpoint && endpoint->port ? endpoint : NULL;
}

/* Returns NULL if the connection's endpoint id has been reused. */
static __always_inline struct endpoint *endpoint_of(const struct connection *connection)
{
	struct endpoint *endpoint = endpoint_get(connection->endpoint);

	return endpoint && endpoint->tag == connection->tag ? endpoint : NULL;
}

static __always_inline __u32 endpoint_at(__u32 index)
{
	__u32 *id = bpf_map_lookup_elem(&endpoint_rows, &index);

	return id ? *id : 0;
}
