/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "parse.h"
#include "settings.h"

/* ICMP to a VIP: echo requests (answered by the ingress node), neighbour solicitations (answered by
 * its agent) and errors. An error is forwarded as a packet of the flow that it quotes, and never
 * begins a flow.
 */

/* RFC 792 and RFC 4443. */
struct icmp {
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 rest;
};

/* RFC 792, RFC 1191. */
#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_ECHO_REQUEST 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12

/* RFC 4443. */
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_TOO_BIG 2
#define ICMPV6_TIME_EXCEEDED 3
#define ICMPV6_PARAMETER_PROBLEM 4
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY 129

/* RFC 4861 sections 4.3 and 7.1.1. */
#define ICMPV6_SOLICITATION 135
#define ICMPV6_SOLICITATION_HOPS 255

struct solicitation {
	struct ipv6hdr ip;
	struct icmp icmp;
	struct in6_addr target;
};

/* Parses the ports of the quoted packet in the client's direction. */
static __always_inline int read_embedded_ports(struct xdp_md *ctx, struct packet *packet,
					       __u32 offset)
{
	__be16 *ports = frame_at(ctx, offset);

	if (packet->flow.protocol != IPPROTO_TCP && packet->flow.protocol != IPPROTO_UDP &&
	    packet->flow.protocol != IPPROTO_SCTP)
		return DROP_ICMP_EMBEDDED;
	if ((void *)(ports + 2) > (void *)(long)ctx->data_end ||
	    offset + 2 * sizeof(*ports) > packet->l3 + packet->length)
		return DROP_MALFORMED;
	packet->flow.vip_port = ports[0];
	packet->flow.client_port = ports[1];
	packet->tcp_flags = 0;
	packet->kind = PACKET_ICMP_ERROR;
	return frame_holds(ctx, packet) ? DROP_NONE : DROP_MALFORMED;
}

static __always_inline int read_echo(struct xdp_md *ctx, struct packet *packet)
{
	packet->kind = PACKET_ECHO;
	if (packet->length < packet->l4 - packet->l3 + sizeof(struct icmp))
		return DROP_MALFORMED;
	return frame_holds(ctx, packet) ? DROP_NONE : DROP_MALFORMED;
}

static __always_inline int is_icmp_error(__u8 type)
{
	/* Source quench is deprecated (RFC 6633), and redirects are for hosts on the link. */
	return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED ||
	       type == ICMP_PARAMETER_PROBLEM;
}

static __always_inline int read_icmp(struct xdp_md *ctx, struct packet *packet)
{
	struct icmp *icmp = frame_at(ctx, packet->l4);
	struct iphdr *embedded = (void *)(icmp + 1);

	if ((void *)(icmp + 1) > (void *)(long)ctx->data_end)
		return DROP_MALFORMED;
	if (icmp->type == ICMP_ECHO_REQUEST)
		return read_echo(ctx, packet);
	if (!is_icmp_error(icmp->type))
		return DROP_ICMP_TYPE;
	if ((void *)(embedded + 1) > (void *)(long)ctx->data_end)
		return DROP_MALFORMED;
	if (embedded->version != 4 || embedded->ihl < 5)
		return DROP_MALFORMED;
	if (embedded->saddr != packet->flow.vip.word[3] ||
	    embedded->frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return DROP_ICMP_EMBEDDED;
	packet->flow.client.word[3] = embedded->daddr;
	packet->flow.protocol = embedded->protocol;
	return read_embedded_ports(ctx, packet, packet->l4 + sizeof(*icmp) + embedded->ihl * 4);
}

static __always_inline int is_icmpv6_error(__u8 type)
{
	return type >= ICMPV6_UNREACHABLE && type <= ICMPV6_PARAMETER_PROBLEM;
}

static __always_inline int read_icmpv6(struct xdp_md *ctx, struct packet *packet)
{
	struct icmp *icmp = frame_at(ctx, packet->l4);
	struct ipv6hdr *embedded = (void *)(icmp + 1);
	struct ipv6_fragment *fragment = (void *)(embedded + 1);
	__u32 l4 = packet->l4 + sizeof(*icmp) + sizeof(*embedded);
	void *data_end = (void *)(long)ctx->data_end;
	struct address from;

	if ((void *)(icmp + 1) > data_end)
		return DROP_MALFORMED;
	if (icmp->type == ICMPV6_ECHO_REQUEST)
		return read_echo(ctx, packet);
	if (!is_icmpv6_error(icmp->type))
		return DROP_ICMP_TYPE;
	if ((void *)(embedded + 1) > data_end || embedded->version != 6)
		return DROP_MALFORMED;
	address_set_ipv6(&from, &embedded->saddr);
	if (!address_equal(&from, &packet->flow.vip))
		return DROP_ICMP_EMBEDDED;
	address_set_ipv6(&packet->flow.client, &embedded->daddr);
	packet->flow.protocol = embedded->nexthdr;
	if (embedded->nexthdr == IPV6_FRAGMENT) {
		if ((void *)(fragment + 1) > data_end)
			return DROP_MALFORMED;
		if (fragment->offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
			return DROP_ICMP_EMBEDDED;
		packet->flow.protocol = fragment->next;
		l4 += sizeof(*fragment);
	}
	return read_embedded_ports(ctx, packet, l4);
}

/* Rewrites the destination of a unicast neighbour solicitation for a VIP (RFC 4861 section 7.3.3)
 * to the solicited-node multicast address, so that the agent's socket receives it. The kernel would
 * forward the unicast frame or send a redirect, because the VIP is not a local address.
 */
static __always_inline int ask_group(struct xdp_md *ctx, const struct packet *packet)
{
	struct solicitation *request = frame_at(ctx, packet->l3);
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct address target;

	if (packet->flow.family != ADDRESS_FAMILY_IPV6 || packet->flow.protocol != IPPROTO_ICMPV6 ||
	    (void *)(request + 1) > (void *)(long)ctx->data_end ||
	    (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return 0;
	address_set_ipv6(&target, &request->target);
	if (request->ip.hop_limit != ICMPV6_SOLICITATION_HOPS ||
	    request->icmp.type != ICMPV6_SOLICITATION || !address_equal(&target, &packet->flow.vip))
		return 0;
	/* RFC 2464 section 7, RFC 4291 section 2.7.1. */
	eth->h_dest[0] = 0x33;
	eth->h_dest[1] = 0x33;
	eth->h_dest[2] = 0xff;
	__builtin_memcpy(&eth->h_dest[3], &request->target.in6_u.u6_addr8[13], 3);
	return 1;
}
