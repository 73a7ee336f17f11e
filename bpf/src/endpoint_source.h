/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "bloom.h"
#include "frontend.h"
#include "hash.h"
#include "maps.h"

/* Datagrams to a VIP from the address and port of an endpoint. The endpoint behind the VIP would
 * answer to that port, where another server answers to the VIP: one spoofed datagram makes the two
 * pods answer each other without end. So such a datagram begins no flow. The node of the endpoint
 * that is the source also drops datagrams to VIPs that leave from it and answer no flow, because the
 * node of the other endpoint does not know all endpoints of the cluster.
 */

/* Reports whether the address and port are those of an endpoint of this node. */
static __always_inline int is_endpoint_port(const struct address *address, __be16 port)
{
	struct endpoint_port key = { .address = *address, .port = port };

	return bpf_map_lookup_elem(&endpoint_ports, &key) != NULL;
}

/* Reports whether a new flow, as the client sends it, would make two endpoints answer each other. */
static __always_inline int is_endpoint_source(const struct flow *flow)
{
	return flow->protocol == IPPROTO_UDP && is_endpoint_port(&flow->client, flow->client_port);
}

/* The same for a packet that leaves the node and answers no flow. answers has its source as the VIP. */
__noinline int is_endpoint_question(const struct flow *answers)
{
	struct flow flow;

	if (!answers || answers->protocol != IPPROTO_UDP)
		return 0;
	flow = (struct flow){
		.client = answers->vip,
		.vip = answers->client,
		.client_port = answers->vip_port,
		.vip_port = answers->client_port,
		.protocol = IPPROTO_UDP,
		.family = answers->family,
	};
	return bloom_has_flow(&flow) && frontend_find(&flow) && is_endpoint_source(&flow);
}
