/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "vip_reply.h"
#include "bloom.h"
#include "count.h"
#include "decap.h"
#include "finish.h"
#include "headers.h"
#include "packet_slot.h"
#include "service_proxy.h"
#include "stage1.h"
#include "vlan.h"

/* Slow path: IP options, extension headers, fragments, ICMP, SCTP and VLAN tags. */

/* For an ICMP error, the frontend is that of the quoted flow. */
static __always_inline int slow_find(struct xdp_md *ctx, struct packet *packet,
				     struct frontend **frontend)
{
	int flaw = read_packet(ctx, packet);

	if (flaw)
		return flaw;
	*frontend = frontend_find(&packet->flow);
	/* Echo requests have no frontend. */
	if (packet->kind == PACKET_ECHO)
		return DROP_NONE;
	return *frontend ? DROP_NONE : DROP_NO_FRONTEND;
}

/* As from_node. The outer IP header has been parsed. */
static __always_inline int slow_from_node(struct xdp_md *ctx, struct packet *packet,
					  struct frontend **frontend)
{
	__u8 outer_tos = packet->tos;
	__be16 protocol;
	int flaw;

	flaw = enter_tunnel(ctx, packet, &protocol);
	if (flaw != TUNNEL_READ)
		return flaw;
	if (read_ip_header(ctx, packet, protocol))
		return drop(DROP_TUNNEL_MALFORMED);
	if (ecn_merge(packet, outer_tos))
		return drop(DROP_TUNNEL_ECN);
	if (!is_vip(&packet->flow.vip))
		return drop(DROP_TUNNEL_NO_VIP);
	flaw = slow_find(ctx, packet, frontend);
	if (flaw)
		return drop(flaw);
	/* Echo requests are not forwarded between nodes. */
	if (packet->kind == PACKET_ECHO)
		return drop(DROP_ICMP_TYPE);
	return serve_inner(packet, *frontend);
}

/* Nodes send outer headers without options and fragments; others are dropped. */
static __always_inline int slow_tunnel(struct xdp_md *ctx, struct packet *packet,
				       struct frontend **frontend)
{
	struct iphdr *ip = frame_at(ctx, packet->l3);
	struct tunnel *tunnel;
	int whole = 1;

	packet->l4 = packet->l3 + sizeof(struct ipv6hdr);
	if (packet->flow.family == ADDRESS_FAMILY_IPV4) {
		if ((void *)(ip + 1) > (void *)(long)ctx->data_end || ip->ihl < 5 ||
		    ip->frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
			return XDP_PASS;
		whole = ip->ihl == 5 && !(ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS));
		packet->l4 = packet->l3 + ip->ihl * 4;
	}
	if (parse_l4(ctx, packet) || packet->flow.vip_port != bpf_htons(GENEVE_PORT))
		return XDP_PASS;
	if (whole)
		return slow_from_node(ctx, packet, frontend);
	tunnel = frame_at(ctx, packet->l4);
	if ((void *)&tunnel->option > (void *)(long)ctx->data_end ||
	    !vni_is_ours(tunnel->geneve.vni))
		return XDP_PASS;
	return drop(DROP_TUNNEL_MALFORMED);
}

#define NOT_VIP -1

/* flaw: DROP_NONE for a VIP, a drop reason, or NOT_VIP if possibly encapsulated. */
static __always_inline int slow_enter(struct xdp_md *ctx, struct packet_slot *slot,
				      const struct self *self, int *flaw)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct packet *packet = &slot->packet;
	__be16 protocol;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return 0;
	protocol = read_tags(ctx, slot, eth->h_proto);
	packet->l3 = sizeof(*eth) + slot->tags * VLAN_TAG_LENGTH;
	if (is_vlan(protocol))
		count_event(EVENT_VLAN_UNKNOWN);
	if (read_ip_header(ctx, packet, protocol))
		return 0;
	*flaw = DROP_NONE;
	if (!bloom_has_flow(&packet->flow) || !is_vip(&packet->flow.vip)) {
		if (packet->flow.protocol == IPPROTO_UDP && is_self(self, &packet->flow))
			*flaw = NOT_VIP;
		else if (bloom_has_flow(&packet->flow))
			*flaw = unassigned(self, &packet->flow);
		if (!*flaw)
			return 0;
	}
	if (!tags_are_ours(ctx, slot)) {
		if (*flaw != NOT_VIP)
			count_event(EVENT_VLAN_UNKNOWN);
		return 0;
	}
	return !take_tags(ctx, slot);
}

static __always_inline int slow_read(struct xdp_md *ctx, struct packet_slot *slot,
				     const struct self *self, struct frontend **frontend)
{
	struct packet *packet = &slot->packet;
	int flaw = DROP_NONE;

	if (!slow_enter(ctx, slot, self, &flaw))
		return XDP_PASS;
	if (flaw == NOT_VIP)
		return slow_tunnel(ctx, packet, frontend);
	if (!flaw)
		trace_step(TRACE_VIP);
	if (!frame_is_ours(ctx, self)) {
		trace_step(TRACE_OTHER_STATION);
		return XDP_PASS;
	}
	if (flaw)
		return drop(flaw);
	if (ask_group(ctx, packet))
		return XDP_PASS;
	flaw = slow_find(ctx, packet, frontend);
	/* Linux 6.1 does not track that flaw is 0 in a second comparison. */
	if (flaw) {
		if (flaw == DROP_NO_FRONTEND && service_proxy)
			return XDP_PASS;
		if (flaw == DROP_NO_FRONTEND && is_router_probe(ctx, packet))
			return answer_probe(ctx, packet);
		return drop(flaw);
	}
	if (packet->kind == PACKET_ECHO)
		return reply_to_echo(ctx, packet, self);
	if (pass_to_proxy(ctx, packet, *frontend))
		return XDP_PASS;
	return from_router(packet, self, *frontend);
}

/* Returns an XDP action, or an internal verdict with the packet and frontend in the slot. */
__noinline int slow_path(struct xdp_md *ctx)
{
	struct packet_slot *slot = packet_slot();
	struct self *self = settings_get();
	struct frontend *frontend = NULL;
	int verdict;

	if (!slot || !self)
		return XDP_PASS;
	__builtin_memset(slot, 0, sizeof(*slot));
	verdict = slow_read(ctx, slot, self, &frontend);
	if (frontend)
		slot->frontend = *frontend;
	return verdict;
}

/* Reports whether the VLAN tags must be restored. */
static __always_inline int keeps_tags(const struct xdp_md *ctx, const struct packet_slot *slot,
				      int verdict)
{
	if (!slot->tags || slot->packet.l3 != sizeof(struct ethhdr))
		return 0;
	/* A frame with redirect metadata is sent to a node (next_hop.h). */
	if (verdict == XDP_PASS)
		return ctx->data_meta == ctx->data;
	return verdict == XDP_TX && slot->packet.is_vip_reply;
}

/* Redirects a reply that the kernel sends to the uplink whose tags were removed. */
static __always_inline void route_reply(const struct xdp_md *ctx, const struct packet_slot *slot)
{
	struct kernel_redirect *note = (void *)(long)ctx->data_meta;

	if (slot->uplink && (void *)(note + 1) <= (void *)(long)ctx->data)
		note->ifindex = slot->uplink;
}

/* Restores VLAN tags as needed. Returns an XDP action. */
__noinline int slow_leave(struct xdp_md *ctx, int verdict)
{
	struct packet_slot *slot = packet_slot();

	if (!slot)
		return XDP_ABORTED;
	if (keeps_tags(ctx, slot, verdict) && put_tags(ctx, slot))
		return drop_silently(ctx, &slot->packet, DROP_HEADROOM);
	if (verdict == XDP_PASS && slot->packet.is_vip_reply)
		route_reply(ctx, slot);
	return verdict;
}
