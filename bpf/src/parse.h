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

#include "address.h"
#include "drop_reason.h"
#include "frame.h"
#include "types.h"

/* Not an IP packet. */
#define NOT_IP -1

/* IPv6 extension headers (IANA protocol registry). */
#define IPV6_HOP_BY_HOP 0
#define IPV6_ROUTING 43
#define IPV6_FRAGMENT 44
#define IPV6_DESTINATION 60

#define IPV6_MORE_FRAGMENTS 0x0001
#define IPV6_FRAGMENT_OFFSET 0xfff8

struct ipv6_fragment {
	__u8 next;
	__u8 reserved;
	/* In bytes, with flags in the lower 3 bits. */
	__be16 offset;
	__be32 id;
};

static __always_inline int parse_l4(struct xdp_md *ctx, struct packet *packet)
{
	void *data_end = (void *)(long)ctx->data_end;
	__u32 header = packet->l4 - packet->l3;

	if (packet->flow.protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = frame_at(ctx, packet->l4);

		if ((void *)(tcp + 1) > data_end || packet->length < header + sizeof(*tcp))
			return DROP_MALFORMED;
		packet->flow.client_port = tcp->source;
		packet->flow.vip_port = tcp->dest;
		packet->tcp_flags = ((__u8 *)tcp)[13];
	} else {
		struct udphdr *udp = frame_at(ctx, packet->l4);

		if ((void *)(udp + 1) > data_end || packet->length < header + sizeof(*udp))
			return DROP_MALFORMED;
		packet->flow.client_port = udp->source;
		packet->flow.vip_port = udp->dest;
		packet->tcp_flags = 0;
	}
	return frame_holds(ctx, packet) ? DROP_NONE : DROP_MALFORMED;
}

static __always_inline int parse_ipv4(struct xdp_md *ctx, struct packet *packet)
{
	void *data_end = (void *)(long)ctx->data_end;
	struct iphdr *ip = frame_at(ctx, packet->l3);

	if ((void *)(ip + 1) > data_end)
		return NOT_IP;
	packet->flow.family = ADDRESS_FAMILY_IPV4;
	address_set_ipv4(&packet->flow.client, ip->saddr);
	address_set_ipv4(&packet->flow.vip, ip->daddr);
	packet->flow.protocol = ip->protocol;
	packet->tos = ip->tos;
	packet->length = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || ip->ihl != 5)
		return DROP_MALFORMED;
	packet->l4 = packet->l3 + sizeof(*ip);
	if (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET))
		return DROP_FRAGMENT;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return DROP_VIP_PROTOCOL;
	return parse_l4(ctx, packet);
}

static __always_inline int parse_ipv6(struct xdp_md *ctx, struct packet *packet)
{
	void *data_end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = frame_at(ctx, packet->l3);

	if ((void *)(ip + 1) > data_end)
		return NOT_IP;
	packet->flow.family = ADDRESS_FAMILY_IPV6;
	address_set_ipv6(&packet->flow.client, &ip->saddr);
	address_set_ipv6(&packet->flow.vip, &ip->daddr);
	packet->flow.protocol = ip->nexthdr;
	packet->tos = bpf_ntohs(*(__be16 *)ip) >> 4;
	packet->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (ip->version != 6)
		return DROP_MALFORMED;
	packet->l4 = packet->l3 + sizeof(*ip);
	switch (ip->nexthdr) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
		return parse_l4(ctx, packet);
	case IPV6_FRAGMENT:
		return DROP_FRAGMENT;
	case IPV6_HOP_BY_HOP:
	case IPV6_ROUTING:
	case IPV6_DESTINATION:
		return DROP_IPV6_EXTENSION;
	default:
		return DROP_VIP_PROTOCOL;
	}
}

/* Returns DROP_NONE, NOT_IP, or a drop reason, which applies only to our destinations. */
static __always_inline int parse_ip(struct xdp_md *ctx, struct packet *packet, __be16 protocol)
{
	if (protocol == bpf_htons(ETH_P_IP))
		return parse_ipv4(ctx, packet);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(ctx, packet);
	return NOT_IP;
}
