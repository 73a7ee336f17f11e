/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"

/* The endpoints of this node. */

static __always_inline struct endpoint *endpoint_get(__u32 id)
{
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, &id);

	return endpoint && endpoint->port ? endpoint : NULL;
}

/* The endpoint of a connection, unless its id was given to another endpoint since. */
static __always_inline struct endpoint *endpoint_of(const struct connection *connection)
{
	struct endpoint *endpoint = endpoint_get(connection->endpoint);

	return endpoint && endpoint->tag == connection->tag ? endpoint : NULL;
}

/* The id in a row of the endpoint tables; zero means none. */
static __always_inline __u32 endpoint_at(__u32 index)
{
	__u32 *id = bpf_map_lookup_elem(&endpoint_rows, &index);

	return id ? *id : 0;
}
