/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include "agent_heartbeat.h"
#include "csum.h"
#include "frame.h"
#include "geneve.h"
#include "node.h"
#include "send_back.h"
#include "settings.h"
#include "siphash.h"
#include "verdict.h"

/* Probes check whether other nodes accept encapsulated packets. They use the same port, so they
 * pass the same firewalls and this program. No process is needed to reply, so a node with busy CPUs
 * or a restarting agent is not considered down.
 */

#define PROBE_TTL 64

/* MAC of a probe with a key of the cluster; the nonce is the requester's. */
static __always_inline __u64 probe_tag(const __u64 key[2], const struct probe *probe, __u32 kind)
{
	__u64 head = kind | (__u64)bpf_ntohs(probe->from) << 16 | (__u64)bpf_ntohs(probe->to) << 32;

	return siphash(key, head, probe->nonce);
}

/* Returns the number of the key that matches the tag, or -1. */
static __always_inline int probe_key(const struct probe_keys *keys, const struct probe *probe)
{
	for (__u32 i = 0; i < PROBE_KEYS; i++) {
		if (i < keys->count && probe_tag(keys->key[i], probe, PROBE_REQUEST) == probe->tag)
			return i;
	}
	return -1;
}

/* Others announce the L2 VIPs of a node whose agent is down, and assume stale maps. */
static __always_inline __u32 probe_answer(void)
{
	return agent_state() == AGENT_SILENT ? PROBE_ANSWER_ALONE : PROBE_ANSWER;
}

/* Swaps the outer addresses, which does not change the IPv4 checksum. */
static __always_inline int probe_turn(struct xdp_md *ctx, const struct packet *packet)
{
	void *data_end = (void *)(long)ctx->data_end;

	if (packet->flow.family == ADDRESS_FAMILY_IPV4) {
		struct iphdr *ip = frame_at(ctx, packet->l3);
		__u16 ttl;

		if ((void *)(ip + 1) > data_end)
			return -1;
		ttl = bpf_htons(ip->ttl << 8);
		ip->saddr = packet->flow.vip.word[3];
		ip->daddr = packet->flow.client.word[3];
		csum_apply(&ip->check, csum_change16(0, ttl, bpf_htons(PROBE_TTL << 8)));
		ip->ttl = PROBE_TTL;
	} else {
		struct ipv6hdr *ip = frame_at(ctx, packet->l3);

		if ((void *)(ip + 1) > data_end)
			return -1;
		__builtin_memcpy(&ip->saddr, &packet->flow.vip, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, &packet->flow.client, sizeof(ip->daddr));
		ip->hop_limit = PROBE_TTL;
	}
	return 0;
}

/* Returns the sender's node id, or 0. Own probes may be routed back to this node. */
static __always_inline __u32 probe_sender(const struct packet *packet, const struct self *self)
{
	/* Linux 6.1 rejects map keys in arguments of global functions. */
	struct address client = packet->flow.client;
	__u32 *sender = bpf_map_lookup_elem(&node_addresses, &client);

	if (sender)
		return *sender;
	return is_from_self(self, &packet->flow) ? self->id : 0;
}

/* Reports whether a packet to a VIP may be a probe that a router forwarded. */
static __always_inline int is_router_probe(struct xdp_md *ctx, const struct packet *packet)
{
	struct probe_datagram *datagram = frame_at(ctx, packet->l4);

	return packet->flow.vip_port == bpf_htons(GENEVE_PORT) &&
	       packet->flow.protocol == IPPROTO_UDP &&
	       (void *)(datagram + 1) <= (void *)(long)ctx->data_end &&
	       vni_is_probe(datagram->geneve.vni);
}

/* Replies to a probe of this node, or of the node that a router selects for a VIP. */
__noinline int answer_probe(struct xdp_md *ctx, struct packet *packet)
{
	struct self *self = settings_get();
	struct probe_datagram *datagram;
	struct probe_keys *keys;
	__u32 zero = 0, kind, sender;
	int number, by_router;

	keys = bpf_map_lookup_elem(&probe_secrets, &zero);
	if (!packet || !self || !keys)
		return XDP_PASS;
	sender = probe_sender(packet, self);
	if (!sender)
		return drop(DROP_TUNNEL_SOURCE);
	/* Routers may use any uplink. */
	by_router = !is_self(self, &packet->flow);
	if (!by_router && !node_is_reached_by(sender, ctx->ingress_ifindex))
		return drop(DROP_TUNNEL_UPLINK);
	datagram = frame_at(ctx, packet->l4);
	if ((void *)(datagram + 1) > (void *)(long)ctx->data_end ||
	    datagram->probe.kind != bpf_htonl(PROBE_REQUEST) ||
	    bpf_ntohs(datagram->probe.from) != sender ||
	    bpf_ntohs(datagram->probe.to) != (by_router ? 0 : self->id))
		return drop(DROP_TUNNEL_PROBE);
	number = probe_key(keys, &datagram->probe);
	if (number < 0 || number >= PROBE_KEYS)
		return drop(DROP_TUNNEL_PROBE);
	kind = probe_answer();
	datagram->probe.kind = bpf_htonl(kind);
	datagram->probe.to = bpf_htons(self->id);
	datagram->probe.tag = probe_tag(keys->key[number], &datagram->probe, kind);
	datagram->udp.dest = packet->flow.client_port;
	datagram->udp.source = bpf_htons(GENEVE_PORT);
	/* RFC 6935: over IPv6 the MAC replaces the checksum. */
	datagram->udp.check = 0;
	if (probe_turn(ctx, packet))
		return drop(DROP_TUNNEL_PROBE);
	count_event(EVENT_PROBE_REPLY_SENT);
	/* The stack receives the reply to an own probe. */
	if (sender == self->id)
		return XDP_PASS;
	packet->is_vip_reply = 1;
	return send_back(ctx, self, 0);
}
