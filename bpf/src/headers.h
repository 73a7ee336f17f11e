/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "fragment.h"
#include "icmp.h"
#include "parse.h"
#include "sctp.h"

/* Parser for the slow path: IPv4 options, IPv6 extension headers and fragments. */

#define IPV4_OPTION_END 0
#define IPV4_OPTION_NOP 1
#define IPV4_OPTION_LOOSE_SOURCE_ROUTE 131
#define IPV4_OPTION_STRICT_SOURCE_ROUTE 137
/* Bytes. */
#define IPV4_MIN_OPTIONS 4
#define IPV4_MAX_OPTIONS 40

/* Legitimate clients do not exceed these. */
#define IPV6_MAX_EXTENSIONS 6
#define IPV6_MAX_EXTENSION_BYTES 256

/* State of the walk over IPv6 extension headers; offsets in the frame. */
struct header_walk {
	struct xdp_md *ctx;
	__u32 position;
	__u32 end;
	/* DROP_NONE or the drop reason. */
	__u32 flaw;
	__u8 protocol;
	/* Not an atomic fragment (RFC 6946). */
	__u8 fragmented;
	__u8 later;
	__u8 done;
	__be32 id;
};

struct fragment_place {
	/* enum fragment_part */
	__u32 part;
	__be32 id;
	/* Bytes. */
	__u32 offset;
};

static __always_inline long walk_flawed(struct header_walk *walk, enum drop_reason flaw)
{
	walk->flaw = flaw;
	walk->done = 1;
	return 1;
}

struct ipv4_options {
	__u8 byte[IPV4_MAX_OPTIONS];
	__u8 unused;
	/* Offset of the next option. A byte at an odd address, whose value the verifier does not
	 * track, so that it checks each step of the loop only once.
	 */
	volatile __u8 next;
};

/* Drops source routes; other options are retained. They are copied, because a helper call per option
 * costs more than the whole loop. Global, so verified once.
 */
__noinline int check_ipv4_options(struct xdp_md *ctx, __u32 position, __u32 length)
{
	struct ipv4_options options = {};
	const __u8 *byte = options.byte;

	if (length < IPV4_MIN_OPTIONS)
		return DROP_MALFORMED;
	/* Two comparisons, or Linux 6.1 does not know that the length is not 0. */
	asm volatile("" : "+r"(length));
	if (length > IPV4_MAX_OPTIONS || bpf_xdp_load_bytes(ctx, position, options.byte, length))
		return DROP_MALFORMED;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < length && i < IPV4_MAX_OPTIONS; i++) {
		if (i < options.next || byte[i] == IPV4_OPTION_NOP)
			continue;
		if (byte[i] == IPV4_OPTION_END)
			break;
		/* RFC 7126 sections 4.3 and 4.4. */
		if (byte[i] == IPV4_OPTION_LOOSE_SOURCE_ROUTE ||
		    byte[i] == IPV4_OPTION_STRICT_SOURCE_ROUTE)
			return DROP_SOURCE_ROUTE;
		/* The byte behind the options is 0. */
		if (byte[i + 1] < 2 || i + byte[i + 1] > length)
			return DROP_MALFORMED;
		options.next = i + byte[i + 1];
	}
	return DROP_NONE;
}

struct ipv6_extension {
	__u8 next;
	/* In 8-byte units, without the first 8 bytes. */
	__u8 length;
	/* Routing type. */
	__u8 type;
	__u8 segments_left;
};

static __always_inline long ipv6_fragment_step(struct header_walk *walk)
{
	struct ipv6_fragment header;

	if (walk->fragmented ||
	    bpf_xdp_load_bytes(walk->ctx, walk->position, &header, sizeof(header)))
		return walk_flawed(walk, DROP_MALFORMED);
	walk->protocol = header.next;
	walk->position += sizeof(header);
	walk->id = header.id;
	walk->later = !!(header.offset & bpf_htons(IPV6_FRAGMENT_OFFSET));
	walk->fragmented = walk->later || header.offset & bpf_htons(IPV6_MORE_FRAGMENTS);
	walk->done = walk->later;
	return walk->later;
}

static long ipv6_extension_step(__u32 step, struct header_walk *walk)
{
	struct ipv6_extension header;

	switch (walk->protocol) {
	case IPV6_FRAGMENT:
		return ipv6_fragment_step(walk);
	case IPV6_HOP_BY_HOP:
		/* RFC 8200 section 4.1: only directly behind the IPv6 header. */
		if (step)
			return walk_flawed(walk, DROP_MALFORMED);
		break;
	case IPV6_DESTINATION:
	case IPV6_ROUTING:
		break;
	default:
		walk->done = 1;
		return 1;
	}
	if (bpf_xdp_load_bytes(walk->ctx, walk->position, &header, sizeof(header)))
		return walk_flawed(walk, DROP_MALFORMED);
	/* RFC 5095 for type 0. RFC 8200 section 4.4 permits other types without segments left. */
	if (walk->protocol == IPV6_ROUTING && (!header.type || header.segments_left))
		return walk_flawed(walk, DROP_SOURCE_ROUTE);
	walk->protocol = header.next;
	walk->position += header.length * 8 + 8;
	if (walk->position > walk->end)
		return walk_flawed(walk, DROP_IPV6_EXTENSION);
	return 0;
}

static __noinline int walk_ipv6_extensions(struct header_walk *walk)
{
	if (!walk)
		return DROP_MALFORMED;
	/* One more step to detect the end. */
	bpf_loop(IPV6_MAX_EXTENSIONS + 1, ipv6_extension_step, walk, 0);
	return walk->done ? walk->flaw : DROP_IPV6_EXTENSION;
}

/* Parses the fixed IP header at packet->l3. Returns NOT_IP or DROP_NONE. */
static __always_inline int read_ip_header(struct xdp_md *ctx, struct packet *packet,
					  __be16 protocol)
{
	void *header = frame_at(ctx, packet->l3);
	void *data_end = (void *)(long)ctx->data_end;

	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = header;

		if ((void *)(ip + 1) > data_end)
			return NOT_IP;
		packet->flow.family = ADDRESS_FAMILY_IPV4;
		address_set_ipv4(&packet->flow.client, ip->saddr);
		address_set_ipv4(&packet->flow.vip, ip->daddr);
		packet->flow.protocol = ip->protocol;
		packet->tos = ip->tos;
		packet->length = bpf_ntohs(ip->tot_len);
		return DROP_NONE;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = header;

		if ((void *)(ip + 1) > data_end)
			return NOT_IP;
		packet->flow.family = ADDRESS_FAMILY_IPV6;
		address_set_ipv6(&packet->flow.client, &ip->saddr);
		address_set_ipv6(&packet->flow.vip, &ip->daddr);
		packet->flow.protocol = ip->nexthdr;
		packet->tos = bpf_ntohs(*(__be16 *)ip) >> 4;
		packet->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		return DROP_NONE;
	}
	return NOT_IP;
}

static __always_inline int read_ipv4_options(struct xdp_md *ctx, struct packet *packet,
					     struct fragment_place *place)
{
	struct iphdr *ip = frame_at(ctx, packet->l3);
	__u16 fragment;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return DROP_MALFORMED;
	if (ip->version != 4 || ip->ihl < 5)
		return DROP_MALFORMED;
	fragment = bpf_ntohs(ip->frag_off);
	place->id = ip->id;
	place->offset = (fragment & IPV4_FRAGMENT_OFFSET) * 8;
	if (place->offset)
		place->part = FRAGMENT_LATER;
	else if (fragment & IPV4_MORE_FRAGMENTS)
		place->part = FRAGMENT_FIRST;
	packet->l4 = packet->l3 + ip->ihl * 4;
	if (ip->ihl == 5)
		return DROP_NONE;
	return check_ipv4_options(ctx, packet->l3 + sizeof(*ip), (ip->ihl - 5) * 4);
}

static __always_inline int read_ipv6_extensions(struct xdp_md *ctx, struct packet *packet,
						struct fragment_place *place)
{
	struct ipv6hdr *ip = frame_at(ctx, packet->l3);
	struct header_walk walk = { .ctx = ctx };
	int flaw;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return DROP_MALFORMED;
	if (ip->version != 6)
		return DROP_MALFORMED;
	walk.protocol = ip->nexthdr;
	walk.position = packet->l3 + sizeof(*ip);
	walk.end = walk.position + IPV6_MAX_EXTENSION_BYTES;
	flaw = walk_ipv6_extensions(&walk);
	if (flaw)
		return flaw;
	packet->flow.protocol = walk.protocol;
	packet->l4 = walk.position;
	place->id = walk.id;
	if (walk.later)
		place->part = FRAGMENT_LATER;
	else if (walk.fragmented)
		place->part = FRAGMENT_FIRST;
	/* Lower bound for a later fragment. */
	place->offset = 8;
	return DROP_NONE;
}

static __always_inline int read_transport(struct xdp_md *ctx, struct packet *packet)
{
	switch (packet->flow.protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
		return parse_l4(ctx, packet);
	case IPPROTO_SCTP:
		return parse_sctp(ctx, packet);
	case IPPROTO_ICMP:
		if (packet->flow.family != ADDRESS_FAMILY_IPV4)
			return DROP_VIP_PROTOCOL;
		return read_icmp(ctx, packet);
	case IPPROTO_ICMPV6:
		if (packet->flow.family != ADDRESS_FAMILY_IPV6)
			return DROP_VIP_PROTOCOL;
		return read_icmpv6(ctx, packet);
	default:
		return DROP_VIP_PROTOCOL;
	}
}

/* Returns DROP_NONE or a drop reason, which applies only to our destinations. */
static __noinline int read_packet(struct xdp_md *ctx, struct packet *packet)
{
	struct fragment_place place = {};
	__u8 protocol;
	int flaw;

	if (packet->flow.family == ADDRESS_FAMILY_IPV4)
		flaw = read_ipv4_options(ctx, packet, &place);
	else
		flaw = read_ipv6_extensions(ctx, packet, &place);
	if (flaw)
		return flaw;
	protocol = packet->flow.protocol;
	if (place.part == FRAGMENT_LATER) {
		/* RFC 1858: it could overwrite the parsed header of the first fragment. */
		if (protocol == IPPROTO_TCP && place.offset < sizeof(struct tcphdr) &&
		    packet->flow.family == ADDRESS_FAMILY_IPV4)
			return DROP_FRAGMENT;
		if (!frame_holds(ctx, packet))
			return DROP_MALFORMED;
		return join_fragment(packet, place.id, protocol, place.part);
	}
	flaw = read_transport(ctx, packet);
	if (flaw || place.part == FRAGMENT_NONE)
		return flaw;
	if (packet->kind != PACKET_TRANSPORT)
		return DROP_FRAGMENT;
	return join_fragment(packet, place.id, protocol, place.part);
}
