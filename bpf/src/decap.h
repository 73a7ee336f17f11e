/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "frame.h"
#include "frontend.h"
#include "geneve.h"
#include "hash.h"
#include "node.h"
#include "parse.h"
#include "probe.h"
#include "settings.h"
#include "tunnel_tag.h"
#include "verdict.h"

/* Decapsulation of packets from other nodes. */

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
					    bpf_htons(ETH_P_IP) :
					    bpf_htons(ETH_P_IPV6);
	return 0;
}

#define ECN_MASK 3
#define ECN_CONGESTION 3

/* RFC 6040 section 4.2: copies a congestion mark (CE) from the outer to the inner header. */
static __always_inline int ecn_merge(struct packet *inner, __u8 outer)
{
	if ((outer & ECN_MASK) != ECN_CONGESTION)
		return 0;
	if (!(inner->tos & ECN_MASK))
		return -1;
	inner->tos |= ECN_CONGESTION;
	return 0;
}

/* Any key; the option must fit in the given number of option words. */
static __always_inline int is_tag(const struct geneve_tag *tag, __u32 words)
{
	__u8 length = tag->length;

	return tag->class == bpf_htons(GENEVE_OPTION_CLASS) &&
	       tag->type >> 4 == GENEVE_TAG_TYPE >> 4 && length >= GENEVE_TAG_WORDS - 1 &&
	       length <= GENEVE_TAG_WORDS - 1 + OVERHEAD_HIGH / 4 &&
	       words >= GENEVE_OPTION_WORDS + 1 + length;
}

/* Returns the inner EtherType, or 0 if malformed. */
static __always_inline __be16 read_tunnel(struct packet *packet, const struct tunnel *tunnel)
{
	__u32 words = tunnel->geneve.version_length & 0x3f;

	if (tunnel->geneve.version_length >> 6 || !is_tag(&tunnel->tag, words))
		return 0;
	if (tunnel->option.class != bpf_htons(GENEVE_OPTION_CLASS) ||
	    tunnel->option.type < GENEVE_OPTION_TYPE ||
	    tunnel->option.type > GENEVE_OPTION_TYPE + ZONES ||
	    tunnel->option.length != GENEVE_OPTION_WORDS - 1)
		return 0;
	packet->zone_steps = tunnel->option.type - GENEVE_OPTION_TYPE;
	packet->no_forward = packet->zone_steps == ZONES;
	packet->path.word =
		(__u64)bpf_ntohl(tunnel->option.path[0]) << 32 | bpf_ntohl(tunnel->option.path[1]);
	packet->l3 = packet->l4 + sizeof(struct udphdr) + sizeof(struct geneve) + words * 4;
	return tunnel->geneve.protocol;
}

/* Not a verdict: the outer headers are valid. */
#define TUNNEL_READ -3

/* Other VNIs belong to other Geneve users, e.g. a CNI plugin. Sets protocol, or 0. */
static __always_inline int enter_tunnel(struct xdp_md *ctx, struct packet *packet, __be16 *protocol)
{
	struct tunnel *tunnel = frame_at(ctx, packet->l4);
	__u32 *sender;
	int flaw;

	if ((void *)&tunnel->option > (void *)(long)ctx->data_end)
		return XDP_PASS;
	if (vni_is_probe(tunnel->geneve.vni))
		return answer_probe(ctx, packet);
	if (!vni_is_ours(tunnel->geneve.vni))
		return XDP_PASS;
	sender = bpf_map_lookup_elem(&node_addresses, &packet->flow.client);
	if (!sender)
		return drop(DROP_TUNNEL_SOURCE);
	packet->sender = *sender;
	if (!node_is_reached_by(*sender, ctx->ingress_ifindex))
		return drop(DROP_TUNNEL_UPLINK);
	if ((void *)(tunnel + 1) > (void *)(long)ctx->data_end)
		return drop(DROP_TUNNEL_MALFORMED);
	trace_step(TRACE_FROM_NODE);
	*protocol = read_tunnel(packet, tunnel);
	if (*protocol != bpf_htons(ETH_P_IP) && *protocol != bpf_htons(ETH_P_IPV6))
		return drop(DROP_TUNNEL_MALFORMED);
	packet->path.high = tunnel_high(ctx, packet->l4) & PATH_HIGH_ALL;
	flaw = tag_check(ctx, &tunnel->tag, packet->l4, packet->l3, packet->flow.family);
	return flaw ? drop(flaw) : TUNNEL_READ;
}

static __always_inline int serve_inner(struct packet *packet, const struct frontend *frontend)
{
	packet->frontend = frontend->id;
	trace_frontend(frontend);
	hash_flow(packet, frontend);
	return serve_here();
}

static __always_inline int from_node(struct xdp_md *ctx, struct packet *packet,
				     const struct frontend **frontend)
{
	__u8 outer_tos = packet->tos;
	__be16 protocol;
	int flaw;

	flaw = enter_tunnel(ctx, packet, &protocol);
	if (flaw != TUNNEL_READ)
		return flaw;
	flaw = parse_ip(ctx, packet, protocol);
	if (flaw == NOT_IP)
		return drop(DROP_TUNNEL_MALFORMED);
	if (flaw)
		return VERDICT_SLOW_PATH;
	if (ecn_merge(packet, outer_tos))
		return drop(DROP_TUNNEL_ECN);
	*frontend = frontend_find(&packet->flow);
	if (!*frontend)
		return drop(is_vip(&packet->flow.vip) ? DROP_NO_FRONTEND : DROP_TUNNEL_NO_VIP);
	return serve_inner(packet, *frontend);
}
