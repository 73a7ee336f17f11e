/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "bloom.h"
#include "frontend.h"
#include "hash.h"
#include "maps.h"

/* Loop prevention for UDP. A datagram to a VIP with the source address and port of an endpoint
 * would make both endpoints reply to each other forever, so it creates no flow. The source
 * endpoint's node drops it on egress, too, because nodes do not know all endpoints of the cluster.
 */

static __always_inline int is_endpoint_port(const struct address *address, __be16 port)
{
	struct endpoint_port key = { .address = *address, .port = port };

	return bpf_map_lookup_elem(&endpoint_ports, &key) != NULL;
}

static __always_inline int is_endpoint_source(const struct flow *flow)
{
	return flow->protocol == IPPROTO_UDP && is_endpoint_port(&flow->client, flow->client_port);
}

/* For an outgoing packet without a flow, in the reply direction. */
__noinline int is_endpoint_request(const struct flow *reply)
{
	struct flow flow;

	if (!reply || reply->protocol != IPPROTO_UDP)
		return 0;
	flow = (struct flow){
		.client = reply->vip,
		.vip = reply->client,
		.client_port = reply->vip_port,
		.vip_port = reply->client_port,
		.protocol = IPPROTO_UDP,
		.family = reply->family,
	};
	return bloom_has_flow(&flow) && frontend_find(&flow) && is_endpoint_source(&flow);
}
