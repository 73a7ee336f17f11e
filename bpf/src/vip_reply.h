/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/tcp.h>

#include "vip_reply_limit.h"
#include "decap.h"
#include "frontend.h"
#include "icmp.h"
#include "next_hop.h"
#include "send_back.h"
#include "verdict.h"

/* Replies on behalf of a VIP: echo replies, TCP resets and ICMP errors. */

/* Maximum length of an ICMP error, in bytes (RFC 1812 section 4.3.2.3, RFC 4443 section 2.4 (c)).
 */
#define ICMP_ERROR_LENGTH 576
#define ICMPV6_ERROR_LENGTH 1280

#define ICMP_CODE_PORT 3
#define ICMP_CODE_TOO_BIG 4
#define ICMPV6_CODE_PORT 4

/* RFC 1812 section 4.3.2.5: internetwork control. */
#define ICMP_ERROR_TOS 0xc0

#define REPLY_TTL 64

/* The checksum is updated incrementally, so a wrong checksum remains wrong. */
__noinline int reply_to_echo(struct xdp_md *ctx, struct packet *packet, const struct self *self)
{
	void *data_end = (void *)(long)ctx->data_end;
	struct icmp *icmp;
	__u16 *kind, old;

	if (!packet || !self)
		return XDP_ABORTED;
	icmp = frame_at(ctx, packet->l4);
	kind = (void *)icmp;
	if (!source_is_host(&packet->flow))
		return drop(DROP_ECHO_SOURCE);
	if (!reply_allowed(&packet->flow, VIP_REPLY_ECHO))
		return drop(DROP_ECHO_RATE_LIMIT);
	if ((void *)(icmp + 1) > data_end)
		return drop(DROP_MALFORMED);
	old = *kind;
	if (packet->flow.family == ADDRESS_FAMILY_IPV4) {
		struct iphdr *ip = frame_at(ctx, packet->l3);
		__u16 ttl = bpf_htons(ip->ttl << 8);

		if ((void *)(ip + 1) > data_end)
			return drop(DROP_MALFORMED);
		icmp->type = ICMP_ECHO_REPLY;
		ip->saddr = packet->flow.vip.word[3];
		ip->daddr = packet->flow.client.word[3];
		csum_apply(&ip->check, csum_change16(0, ttl, bpf_htons(REPLY_TTL << 8)));
		ip->ttl = REPLY_TTL;
	} else {
		struct ipv6hdr *ip = frame_at(ctx, packet->l3);

		if ((void *)(ip + 1) > data_end)
			return drop(DROP_MALFORMED);
		icmp->type = ICMPV6_ECHO_REPLY;
		__builtin_memcpy(&ip->saddr, &packet->flow.vip, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, &packet->flow.client, sizeof(ip->daddr));
		ip->hop_limit = REPLY_TTL;
	}
	csum_apply(&icmp->check, csum_change16(0, old, *kind));
	packet->is_vip_reply = 1;
	trace_step(TRACE_REPLIED);
	count_event(EVENT_ECHO_REPLY_SENT);
	return send_back(ctx, self, 0);
}

/* Checksum over bytes of the frame, from an even offset of the checksummed data. */
struct sum_walk {
	struct xdp_md *ctx;
	__u32 position;
	__u32 end;
	__u32 sum;
};

#define SUM_CHUNK 16
/* Full chunks, then 16-bit words. */
#define SUM_STEPS (ICMPV6_ERROR_LENGTH / SUM_CHUNK + SUM_CHUNK / 2)

static long sum_step(__u32 step, struct sum_walk *walk)
{
	__u32 left = walk->end - walk->position;
	__be32 bytes[SUM_CHUNK / 4] = {};

	if (walk->position >= walk->end)
		return 1;
	if (left >= SUM_CHUNK) {
		if (bpf_xdp_load_bytes(walk->ctx, walk->position, bytes, SUM_CHUNK))
			return 1;
		walk->position += SUM_CHUNK;
	} else if (left >= 2) {
		if (bpf_xdp_load_bytes(walk->ctx, walk->position, bytes, 2))
			return 1;
		walk->position += 2;
	} else {
		if (bpf_xdp_load_bytes(walk->ctx, walk->position, bytes, 1))
			return 1;
		walk->position++;
	}
	walk->sum = bpf_csum_diff(NULL, 0, bytes, sizeof(bytes), walk->sum);
	return 0;
}

/* Returns the sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1), or -1. */
static __always_inline __s64 write_reply_ip(struct xdp_md *ctx, const struct flow *flow,
					    __u8 protocol, __u16 length)
{
	void *header = (void *)(long)ctx->data + sizeof(struct ethhdr);
	__u64 sum = (__u64)bpf_htons(protocol) + bpf_htons(length);

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct iphdr *ip = header;
		__u32 *word = header;

		if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
			return -1;
		ip->version = 4;
		ip->ihl = 5;
		ip->tos = protocol == IPPROTO_ICMP ? ICMP_ERROR_TOS : 0;
		ip->tot_len = bpf_htons(length + sizeof(*ip));
		ip->id = 0;
		ip->frag_off = bpf_htons(IPV4_DONT_FRAGMENT);
		ip->ttl = REPLY_TTL;
		ip->protocol = protocol;
		ip->check = 0;
		ip->saddr = flow->vip.word[3];
		ip->daddr = flow->client.word[3];
		ip->check = csum_fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
		return sum + ip->saddr + ip->daddr;
	}

	struct ipv6hdr *ip = header;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
	*(__be32 *)ip = bpf_htonl(6u << 28);
	ip->payload_len = bpf_htons(length);
	ip->nexthdr = protocol;
	ip->hop_limit = REPLY_TTL;
	__builtin_memcpy(&ip->saddr, &flow->vip, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, &flow->client, sizeof(ip->daddr));
#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += (__u64)flow->vip.word[i] + flow->client.word[i];
	return sum;
}

static __always_inline long cut_frame(struct xdp_md *ctx, __u32 length)
{
	return bpf_xdp_adjust_tail(ctx, (int)length - (int)bpf_xdp_get_buff_len(ctx));
}

/* Rewrites the frame into an ICMP error. Returns 0 or a negative error. */
__noinline long write_icmp_error(struct xdp_md *ctx, const struct packet *packet, __u32 kind,
				 __u32 rest)
{
	const int is_ipv4 = packet && packet->flow.family == ADDRESS_FAMILY_IPV4;
	const __u32 ip = is_ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	const __u32 headers = ip + sizeof(struct icmp);
	const __u32 limit = (is_ipv4 ? ICMP_ERROR_LENGTH : ICMPV6_ERROR_LENGTH) - headers;
	struct sum_walk walk = { .ctx = ctx };
	struct ethhdr *eth = (void *)(long)ctx->data, old;
	struct icmp *icmp;
	__u32 shown;
	__s64 sum;

	if (!packet || (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	old = *eth;
	shown = packet->length < limit ? packet->length : limit;
	if (bpf_xdp_adjust_head(ctx, -(int)headers) ||
	    cut_frame(ctx, sizeof(old) + headers + shown))
		return -1;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	*eth = old;
	sum = write_reply_ip(ctx, &packet->flow, is_ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6,
			     sizeof(*icmp) + shown);
	icmp = frame_at(ctx, sizeof(old) + ip);
	if (sum < 0 || (void *)(icmp + 1) > (void *)(long)ctx->data_end)
		return -1;
	icmp->type = kind >> 8;
	icmp->code = kind;
	icmp->check = 0;
	icmp->rest = rest;
	walk.position = sizeof(old) + ip;
	walk.end = walk.position + sizeof(*icmp) + shown;
	bpf_loop(SUM_STEPS, sum_step, &walk, 0);
	icmp = frame_at(ctx, sizeof(old) + ip);
	if (walk.position != walk.end || (void *)(icmp + 1) > (void *)(long)ctx->data_end)
		return -1;
	/* ICMPv4 has no pseudo-header. */
	icmp->check = csum_fold(walk.sum + (is_ipv4 ? 0 : (__u64)sum));
	return 0;
}

/* RFC 9293 section 3.10.7.1. */
static __always_inline long write_reset(struct xdp_md *ctx, const struct packet *packet)
{
	const __u32 ip = packet->flow.family == ADDRESS_FAMILY_IPV4 ? sizeof(struct iphdr) :
								      sizeof(struct ipv6hdr);
	struct tcphdr *tcp = frame_at(ctx, packet->l4);
	__u32 flags = TCP_RST, acknowledged = 0, *word;
	__be32 sequence = 0;
	__u64 sum;
	__s64 pseudo;

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return -1;
	if (packet->tcp_flags & TCP_ACK) {
		sequence = tcp->ack_seq;
	} else {
		flags |= TCP_ACK;
		/* The SYN counts as one byte. */
		acknowledged = bpf_ntohl(tcp->seq) + 1 + packet->length -
			       (packet->l4 - packet->l3 + tcp->doff * 4);
	}
	if (cut_frame(ctx, sizeof(struct ethhdr) + ip + sizeof(*tcp)))
		return -1;
	pseudo = write_reply_ip(ctx, &packet->flow, IPPROTO_TCP, sizeof(*tcp));
	tcp = frame_at(ctx, sizeof(struct ethhdr) + ip);
	if (pseudo < 0 || (void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return -1;
	word = (void *)tcp;
	tcp->source = packet->flow.vip_port;
	tcp->dest = packet->flow.client_port;
	word[1] = sequence;
	word[2] = bpf_htonl(acknowledged);
	word[3] = bpf_htonl(sizeof(*tcp) / 4 << 28 | flags << 16);
	word[4] = 0;
	sum = (__u64)word[0] + word[1] + word[2] + word[3];
	tcp->check = csum_fold(sum + pseudo);
	return 0;
}

static __always_inline int is_rejection(__u32 reason)
{
	return reason == DROP_NO_ENDPOINT || reason == DROP_BACKEND_INVALID ||
	       reason == DROP_ENDPOINT_GONE;
}

/* Returns the ICMP type and code in one word, or 0 if no error is sent. */
static __always_inline __u32 error_kind(const struct packet *packet, __u32 reason)
{
	const int is_ipv4 = packet->flow.family == ADDRESS_FAMILY_IPV4;

	if (reason == DROP_PACKET_TOO_BIG && !packet->mtu)
		return 0;
	if (is_rejection(reason))
		return is_ipv4 ? ICMP_UNREACHABLE << 8 | ICMP_CODE_PORT :
				 ICMPV6_UNREACHABLE << 8 | ICMPV6_CODE_PORT;
	if (is_ipv4)
		return ICMP_UNREACHABLE << 8 | ICMP_CODE_TOO_BIG;
	/* IPv6 requires an MTU of at least 1280 bytes (RFC 8200 section 5). */
	return packet->mtu >= ICMPV6_ERROR_LENGTH ? ICMPV6_TOO_BIG << 8 : 0;
}

/* A packet is refused only if its Service has no endpoint or its share is refused on every node;
 * otherwise another node may accept the next attempt. Of TCP only SYNs are refused, so that
 * connections survive a temporarily unready pod. Connections of a deleted endpoint are reset,
 * because their clients would retransmit for 15 minutes.
 */
static __always_inline int is_rejected(const struct packet *packet, __u32 reason)
{
	struct frontend *frontend;

	if (reason == DROP_ENDPOINT_GONE)
		return packet->flow.protocol == IPPROTO_TCP &&
		       (packet->tcp_flags & (TCP_ACK | TCP_RST)) == TCP_ACK;
	frontend = frontend_find(&packet->flow);
	if (!frontend || (reason == DROP_NO_ENDPOINT && !(frontend->flags & FRONTEND_REFUSES)))
		return 0;
	if (packet->flow.protocol == IPPROTO_TCP)
		return (packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
	return packet->flow.protocol == IPPROTO_UDP;
}

__noinline int reply_to_drop(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	const int refuses = is_rejection(reason);
	struct self *self = settings_get();
	int from_node, verdict;
	__u32 kind;
	long failed;

	if (!packet || !self || packet->kind != PACKET_TRANSPORT)
		return XDP_DROP;
	kind = error_kind(packet, reason);
	if (!kind || (refuses && !is_rejected(packet, reason)) || !source_is_host(&packet->flow) ||
	    !reply_allowed(&packet->flow, refuses ? VIP_REPLY_REJECT : VIP_REPLY_TOO_BIG))
		return XDP_DROP;
	from_node = packet->l3 != sizeof(struct ethhdr);
	if (from_node && decapsulate(ctx, packet))
		return XDP_DROP;
	if (refuses && packet->flow.protocol == IPPROTO_TCP)
		failed = write_reset(ctx, packet);
	else
		failed = write_icmp_error(ctx, packet, kind, refuses ? 0 : bpf_htonl(packet->mtu));
	if (failed)
		return XDP_DROP;
	verdict = send_back(ctx, self, from_node);
	if (verdict >= VERDICT_DROP)
		return XDP_DROP;
	packet->is_vip_reply = 1;
	trace_step(TRACE_REPLIED);
	count_event(refuses ? EVENT_REJECT_SENT : EVENT_TOO_BIG_SENT);
	return verdict;
}
