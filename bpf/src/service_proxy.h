/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>
#include <linux/tcp.h>

#include "count.h"
#include "frame.h"
#include "frontend.h"
#include "maps.h"
#include "validation.h"
#include "trace.h"
#include "types.h"

/* Migration from or to the node's service proxy (kube-proxy). Packets of the proxy's connections to
 * VIPs pass to the stack. They are kept in a map, because stage 1 is stateless: the agent adds
 * existing connections when a frontend is added, and this program those that begin while the proxy
 * accepts new ones. Addresses and ports without a frontend belong to the proxy, too.
 */

enum service_proxy_mode {
	/* No service proxy. */
	SERVICE_PROXY_NONE,
	/* The proxy accepts new connections until the agent has added the existing ones. */
	SERVICE_PROXY_FROM,
	/* The proxy accepts new TCP connections; we keep ours and all datagrams. SYNs can be
	 * spoofed, so they pass without an entry. The entry is created once the client acknowledges
	 * the SYN-ACK. A SYN flood can evict pending handshakes, but no connections.
	 */
	SERVICE_PROXY_TO,
};

/* Read-only, so that the verifier removes dead code. */
volatile const __u32 service_proxy;

/* Reports whether new connections of the frontend are ours. */
static __always_inline int frontend_is_migrated(__u32 id)
{
	__u32 *taken = bpf_map_lookup_elem(&migrated_frontends, &id);

	return service_proxy == SERVICE_PROXY_FROM && taken && *taken;
}

/* In host byte order. */
static __always_inline __u32 acknowledged_by(const struct xdp_md *ctx, const struct packet *packet)
{
	struct tcphdr *tcp = frame_at(ctx, packet->l4);

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return 0;
	return bpf_ntohl(tcp->ack_seq);
}

/* Reports whether the packet acknowledges the proxy's SYN-ACK, and adds its connection. */
static __always_inline int completes_handshake(const struct xdp_md *ctx,
					       const struct packet *packet, struct flow *flow)
{
	__u32 *offer, one = 1;

	if (packet->kind != PACKET_TRANSPORT || flow->protocol != IPPROTO_TCP ||
	    !is_midstream(packet))
		return 0;
	offer = bpf_map_lookup_elem(&proxy_handshakes, flow);
	if (!offer)
		return 0;
	/* The client aborts the handshake. */
	if (packet->tcp_flags & TCP_RST)
		return 1;
	if (!(packet->tcp_flags & TCP_ACK) || *offer != acknowledged_by(ctx, packet))
		return 0;
	return tracing || !map_update(&proxy_connections, flow, &one, BPF_ANY);
}

/* Reports whether the proxy takes the packet's connection, which has no entry yet. */
static __always_inline int begins_or_completes(const struct xdp_md *ctx,
					       const struct packet *packet, struct flow *flow)
{
	if (packet->kind == PACKET_TRANSPORT && flow->protocol == IPPROTO_TCP &&
	    !is_midstream(packet))
		return 1;
	return completes_handshake(ctx, packet, flow);
}

/* Reports whether a packet from a router belongs to the proxy. Global, so verified once. */
__noinline int is_proxied(struct xdp_md *ctx, const struct packet *packet, __u32 frontend)
{
	struct flow flow;
	__u32 one = 1;

	if (!packet)
		return 0;
	/* Linux 6.1 rejects map keys in arguments of global functions. */
	flow = packet->flow;
	if (bpf_map_lookup_elem(&proxy_connections, &flow))
		return 1;
	if (service_proxy == SERVICE_PROXY_TO)
		return begins_or_completes(ctx, packet, &flow);
	/* The handshake may have begun before the frontend was taken. */
	if (frontend_is_migrated(frontend))
		return completes_handshake(ctx, packet, &flow);
	if (packet->kind != PACKET_TRANSPORT || is_midstream(packet))
		return 1;
	/* If the map is full, the connection is ours. */
	return tracing || !map_update(&proxy_connections, &flow, &one, BPF_ANY);
}

/* Records the expected acknowledgment of a SYN-ACK that is not a reply of ours. */
static __always_inline void record_handshake(struct flow *flow, __u32 sequence)
{
	__u32 expected = sequence + 1;

	if (frontend_find(flow))
		bpf_map_update_elem(&proxy_handshakes, flow, &expected, BPF_ANY);
}

static __always_inline int pass_to_proxy(struct xdp_md *ctx, const struct packet *packet,
					 const struct frontend *frontend)
{
	if (!service_proxy || !is_proxied(ctx, packet, frontend->id))
		return 0;
	count_event(EVENT_PASSED_TO_PROXY);
	return 1;
}
