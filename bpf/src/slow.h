/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "headers.h"
#include "stage1.h"
#include "tunnel.h"

/* What is rare: every form of an IP packet that the common path does not read, from the
 * router or encapsulated by a node. It is read anew from the start, so that the common
 * path need not keep anything for it.
 */

/* The frontend of a packet that was read. ICMP and such share their flow's. */
static __always_inline int slow_find(struct xdp_md *ctx, struct packet *packet,
				     struct frontend **frontend)
{
	int flaw = read_packet(ctx, packet);

	if (flaw)
		return flaw;
	*frontend = frontend_find(&packet->flow);
	return *frontend ? DROP_NONE : DROP_NO_FRONTEND;
}

/* As from_node; the outer headers were read. */
static __always_inline int slow_from_node(struct xdp_md *ctx, struct packet *packet,
					  struct frontend **frontend)
{
	struct tunnel *tunnel = frame_at(ctx, packet->l4);
	__u8 outer_tos = packet->tos;
	__be16 protocol;
	__u32 *sender;
	int flaw;

	if ((void *)&tunnel->option > (void *)(long)ctx->data_end)
		return XDP_PASS;
	if ((tunnel->geneve.vni & bpf_htonl(0xffffff00)) != bpf_htonl(GENEVE_VNI << 8))
		return XDP_PASS;
	sender = bpf_map_lookup_elem(&node_addresses, &packet->flow.client);
	if (!sender)
		return drop(DROP_TUNNEL_SOURCE);
	packet->sender = *sender;
	if ((void *)(tunnel + 1) > (void *)(long)ctx->data_end)
		return drop(DROP_TUNNEL_MALFORMED);
	trace_step(TRACE_FROM_NODE);
	protocol = read_tunnel(packet, tunnel);
	if (read_ip_header(ctx, packet, protocol))
		return drop(DROP_TUNNEL_MALFORMED);
	if (ecn_merge(packet, outer_tos))
		return drop(DROP_TUNNEL_CONGESTION);
	if (!is_vip(&packet->flow.vip))
		return drop(DROP_TUNNEL_NO_VIP);
	flaw = slow_find(ctx, packet, frontend);
	if (flaw)
		return drop(flaw);
	packet->frontend = (*frontend)->id;
	trace_frontend(*frontend);
	hash_flow(packet, *frontend);
	return serve_here();
}

static __always_inline int slow(struct xdp_md *ctx, struct packet *packet, const struct self *self,
				struct frontend **frontend)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	int flaw;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	packet->l3 = sizeof(*eth);
	if (read_ip_header(ctx, packet, eth->h_proto))
		return XDP_PASS;
	if (!is_vip(&packet->flow.vip)) {
		if (packet->flow.protocol != IPPROTO_UDP || !is_self(self, &packet->flow) ||
		    read_packet(ctx, packet) || packet->flow.vip_port != bpf_htons(GENEVE_PORT))
			return XDP_PASS;
		return slow_from_node(ctx, packet, frontend);
	}
	trace_step(TRACE_VIP);
	if (!frame_is_ours(ctx, self)) {
		trace_step(TRACE_OTHER_STATION);
		return XDP_PASS;
	}
	flaw = slow_find(ctx, packet, frontend);
	if (flaw)
		return drop(flaw);
	return from_router(packet, self, *frontend);
}

__noinline int slow_path(struct xdp_md *ctx)
{
	struct self *self = settings_get();
	struct frontend *frontend = NULL;
	struct packet *packet;
	__u32 place = !!tracing;
	int verdict;

	packet = bpf_map_lookup_elem(&slow_packet, &place);
	if (!packet || !self)
		return XDP_PASS;
	__builtin_memset(packet, 0, sizeof(*packet));
	verdict = slow(ctx, packet, self, &frontend);
	return finish(ctx, packet, self, frontend, verdict);
}
