/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "count.h"
#include "maps.h"
#include "proof.h"
#include "trace.h"
#include "types.h"

/* While a cluster moves to Millrace or away from it, some connections to VIPs are the node's service
 * proxy's: their packets pass to the stack, which knows them. Nobody else can tell them from ours, for
 * stage 1 keeps nothing of a connection. So they are in a map: the agent writes those that the stack
 * has when a frontend comes, and this program those that begin while the proxy takes new ones.
 * What has no frontend is the proxy's, too: an address or port of a Service that is not moved yet.
 */

enum service_proxy_mode {
	/* It has none: nothing is looked up. */
	SERVICE_PROXY_NONE,
	/* It keeps what it has. It takes new connections of a frontend until the agent has written
	 * those that began before.
	 */
	SERVICE_PROXY_YIELDS,
	/* It takes new TCP connections. We keep what we have, and all datagrams. */
	SERVICE_PROXY_TAKES,
};

/* It is a constant, so that the verifier removes what is not used. */
volatile const __u32 service_proxy;

/* Reports whether new connections of the frontend are ours. */
static __always_inline int frontend_is_taken(__u32 id)
{
	__u32 *taken = bpf_map_lookup_elem(&taken_frontends, &id);

	return service_proxy == SERVICE_PROXY_YIELDS && taken && *taken;
}

/* Reports whether a packet from a router is the service proxy's. Verified on its own. */
__noinline int is_proxied(const struct packet *packet, __u32 frontend)
{
	struct flow flow;
	__u32 one = 1;

	if (!packet)
		return 0;
	/* Linux 6.1 takes no argument of a function for a key. */
	flow = packet->flow;
	if (bpf_map_lookup_elem(&proxied, &flow))
		return 1;
	if (frontend_is_taken(frontend))
		return 0;
	if (packet->kind != PACKET_TRANSPORT || is_midstream(packet))
		return service_proxy == SERVICE_PROXY_YIELDS;
	if (service_proxy == SERVICE_PROXY_TAKES && packet->flow.protocol != IPPROTO_TCP)
		return 0;
	/* Where the map has no room, the connection is ours. */
	return tracing || !map_update(&proxied, &flow, &one, BPF_ANY);
}

/* Reports whether the packet passes to the stack, and counts it. */
static __always_inline int leave_to_proxy(const struct packet *packet, const struct frontend *frontend)
{
	if (!service_proxy || !is_proxied(packet, frontend->id))
		return 0;
	count_event(EVENT_LEFT_TO_PROXY);
	return 1;
}
