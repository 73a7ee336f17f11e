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
#include "decap.h"
#include "frame.h"
#include "maps.h"
#include "verdict.h"

/* UDP checksum 0 is retained, and a computed 0 is sent as 0xffff (RFC 768). change is that of the
 * pseudo-header. SCTP headers are not changed (sctp.h).
 */
static __always_inline int rewrite_l4(struct xdp_md *ctx, const struct packet *packet, __be16 port,
				      __u64 change)
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

/* A VIP accepts any TTL, as a host does, but the node's stack forwards the packet. */
#define DELIVERED_TTL 2

/* Returns the checksum change. */
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
	/* May contain the outer header's congestion mark. */
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
		change = csum_change(change, ip->daddr.in6_u.u6_addr32[i],
				     endpoint->address.word[i]);
		ip->daddr.in6_u.u6_addr32[i] = endpoint->address.word[i];
	}
	ip->priority = packet->tos >> 4;
	ip->flow_lbl[0] = (packet->tos & 0xf) << 4 | (ip->flow_lbl[0] & 0xf);
	if (ip->hop_limit < DELIVERED_TTL)
		ip->hop_limit = DELIVERED_TTL;
	return rewrite_l4(ctx, packet, endpoint->port, change);
}

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
