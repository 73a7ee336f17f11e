/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>
#include <linux/tcp.h>

#include "count.h"
#include "frame.h"
#include "frontend.h"
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
	 * those that began before. A handshake under way at that moment is its own, too.
	 */
	SERVICE_PROXY_YIELDS,
	/* It takes new TCP connections. We keep what we have, and all datagrams. Anybody can send
	 * SYNs, so these pass without an entry. The entry comes with the first packet that
	 * acknowledges the endpoint's sequence number: the client got the SYN-ACK. A flood of SYNs
	 * can evict offers, which live for the time of a handshake, and no connection.
	 */
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

/* Of a TCP packet, in host byte order. */
static __always_inline __u32 acknowledged_by(const struct xdp_md *ctx, const struct packet *packet)
{
	struct tcphdr *tcp = frame_at(ctx, packet->l4);

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return 0;
	return bpf_ntohl(tcp->ack_seq);
}

/* Reports whether a TCP packet answers the service proxy's SYN-ACK. Then its connection is noted. */
static __always_inline int accepts_offer(const struct xdp_md *ctx, const struct packet *packet,
					 struct flow *flow)
{
	__u32 *offer, one = 1;

	if (packet->kind != PACKET_TRANSPORT || flow->protocol != IPPROTO_TCP ||
	    !is_midstream(packet))
		return 0;
	offer = bpf_map_lookup_elem(&proxy_offers, flow);
	if (!offer)
		return 0;
	/* A client that does not want the connection: nothing is to be remembered. */
	if (packet->tcp_flags & TCP_RST)
		return 1;
	if (!(packet->tcp_flags & TCP_ACK) || *offer != acknowledged_by(ctx, packet))
		return 0;
	return tracing || !map_update(&proxied, flow, &one, BPF_ANY);
}

/* Reports whether a packet is of a connection that the service proxy takes, and that has no entry yet.
 */
static __always_inline int is_taken_over(const struct xdp_md *ctx, const struct packet *packet,
					 struct flow *flow)
{
	if (packet->kind == PACKET_TRANSPORT && flow->protocol == IPPROTO_TCP &&
	    !is_midstream(packet))
		return 1;
	return accepts_offer(ctx, packet, flow);
}

/* Reports whether a packet from a router is the service proxy's. Verified on its own. */
__noinline int is_proxied(struct xdp_md *ctx, const struct packet *packet, __u32 frontend)
{
	struct flow flow;
	__u32 one = 1;

	if (!packet)
		return 0;
	/* Linux 6.1 takes no argument of a function for a key. */
	flow = packet->flow;
	if (bpf_map_lookup_elem(&proxied, &flow))
		return 1;
	if (service_proxy == SERVICE_PROXY_TAKES)
		return is_taken_over(ctx, packet, &flow);
	/* It may have answered a SYN before the frontend was taken from it. */
	if (frontend_is_taken(frontend))
		return accepts_offer(ctx, packet, &flow);
	if (packet->kind != PACKET_TRANSPORT || is_midstream(packet))
		return 1;
	/* Where the map has no room, the connection is ours. */
	return tracing || !map_update(&proxied, &flow, &one, BPF_ANY);
}

/* Notes what the client of a connection of the service proxy has to acknowledge. flow is that of a
 * SYN-ACK with the number, which leaves the node and is no reply of ours.
 */
static __always_inline void note_offer(struct flow *flow, __u32 sequence)
{
	__u32 expected = sequence + 1;

	if (frontend_find(flow))
		bpf_map_update_elem(&proxy_offers, flow, &expected, BPF_ANY);
}

/* Reports whether the packet passes to the stack, and counts it. */
static __always_inline int leave_to_proxy(struct xdp_md *ctx, const struct packet *packet,
					  const struct frontend *frontend)
{
	if (!service_proxy || !is_proxied(ctx, packet, frontend->id))
		return 0;
	count_event(EVENT_LEFT_TO_PROXY);
	return 1;
}
