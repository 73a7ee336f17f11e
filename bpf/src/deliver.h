/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "count.h"
#include "csum.h"
#include "maps.h"
#include "settings.h"

/* Takes away what stands between the Ethernet header and the IP packet. */
static __always_inline int decapsulate(struct xdp_md *ctx, struct packet *packet)
{
	const int shift = packet->l3 - sizeof(struct ethhdr);
	struct stations *stations = (void *)(long)ctx->data;
	struct stations old;

	if ((void *)(stations + 1) > (void *)(long)ctx->data_end)
		return -1;
	old = *stations;
	if (bpf_xdp_adjust_head(ctx, shift))
		return -1;
	packet->l4 -= shift;
	packet->l3 = sizeof(struct ethhdr);
	stations = (void *)(long)ctx->data;
	if ((void *)stations + sizeof(struct ethhdr) > (void *)(long)ctx->data_end)
		return -1;
	*stations = old;
	*(__be16 *)(stations + 1) = packet->flow.family == ADDRESS_FAMILY_IPV4 ?
					    bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return 0;
}

/* Rewrites the destination port and the checksum of the TCP or UDP header, which also
 * covers addresses that changed by the given sum. With SCTP there is nothing to do. A UDP checksum of zero means none
 * and stays; one that becomes zero is sent as ones (RFC 768).
 */
static __always_inline int rewrite_l4(struct xdp_md *ctx, const struct packet *packet,
				      __be16 port, __u64 change)
{
	void *data_end = (void *)(long)ctx->data_end;
	void *l4 = frame_at(ctx, packet->l4);

	change = csum_change16(change, packet->flow.vip_port, port);
	if (packet->flow.protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if ((void *)(tcp + 1) > data_end)
			return -1;
		tcp->dest = port;
		csum_apply(&tcp->check, change);
	} else if (packet->flow.protocol == IPPROTO_UDP) {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > data_end)
			return -1;
		udp->dest = port;
		if (udp->check) {
			csum_apply(&udp->check, change);
			if (!udp->check)
				udp->check = 0xffff;
		}
	}
	return 0;
}

/* A VIP is a host and takes what has reached it, so the router between it and the endpoint,
 * the node's own stack, must not find the packet too old. Nothing can circle by it: the
 * packet's destination is no VIP any more.
 */
#define DELIVERED_TTL 2

/* Returns the change of the header for its checksum. */
static __always_inline __u64 raise_ttl(struct iphdr *ip)
{
	__u16 old = bpf_htons(ip->ttl << 8);

	if (ip->ttl >= DELIVERED_TTL)
		return 0;
	ip->ttl = DELIVERED_TTL;
	return csum_change16(0, old, bpf_htons(DELIVERED_TTL << 8));
}

static __always_inline int translate_ipv4(struct xdp_md *ctx, const struct packet *packet,
					  const struct endpoint *endpoint)
{
	struct iphdr *ip = (void *)(long)ctx->data + sizeof(struct ethhdr);
	__u64 change;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
	change = csum_change(0, ip->daddr, endpoint->address.word[3]);
	ip->daddr = endpoint->address.word[3];
	/* Also covers a congestion mark taken over from the outer header. */
	csum_apply(&ip->check, csum_change16(change, bpf_htons(ip->tos), bpf_htons(packet->tos)) +
				       raise_ttl(ip));
	ip->tos = packet->tos;
	return rewrite_l4(ctx, packet, endpoint->port, change);
}

static __always_inline int translate_ipv6(struct xdp_md *ctx, const struct packet *packet,
					  const struct endpoint *endpoint)
{
	struct ipv6hdr *ip = (void *)(long)ctx->data + sizeof(struct ethhdr);
	__u64 change = 0;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		change = csum_change(change, ip->daddr.in6_u.u6_addr32[i], endpoint->address.word[i]);
		ip->daddr.in6_u.u6_addr32[i] = endpoint->address.word[i];
	}
	ip->priority = packet->tos >> 4;
	ip->flow_lbl[0] = (packet->tos & 0xf) << 4 | (ip->flow_lbl[0] & 0xf);
	if (ip->hop_limit < DELIVERED_TTL)
		ip->hop_limit = DELIVERED_TTL;
	return rewrite_l4(ctx, packet, endpoint->port, change);
}

/* Gives the packet to the stack with the endpoint as its destination. */
static __always_inline int deliver(struct xdp_md *ctx, struct packet *packet,
				   const struct endpoint *endpoint)
{
	int failed;

	if (packet->l3 != sizeof(struct ethhdr) && decapsulate(ctx, packet))
		return drop(DROP_HEADROOM);
	if (packet->flow.family == ADDRESS_FAMILY_IPV4)
		failed = translate_ipv4(ctx, packet, endpoint);
	else
		failed = translate_ipv6(ctx, packet, endpoint);
	if (failed)
		return drop(DROP_MALFORMED);
	trace_step(TRACE_DELIVERED);
	return XDP_PASS;
}
