/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "conntrack.h"
#include "deliver.h"
#include "icmp.h"
#include "verdict.h"

/* Rewrites the port of the quoted transport header, and its checksum if quoted. change is that of
 * the pseudo-header. SCTP headers are not changed (sctp.h). Returns the change of the written
 * bytes, or -1.
 */
static __always_inline __s64 rewrite_embedded_l4(struct xdp_md *ctx, const struct packet *packet,
						 const struct endpoint *endpoint, __u32 offset,
						 __u64 change)
{
	const int is_tcp = packet->flow.protocol == IPPROTO_TCP;
	void *data_end = (void *)(long)ctx->data_end;
	__be16 *port = frame_at(ctx, offset);
	__u16 *check = (void *)port +
		       (is_tcp ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
	__u64 written = csum_change16(0, packet->flow.vip_port, endpoint->port);
	__u32 end = offset +
		    (is_tcp ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check)) +
		    sizeof(*check);
	__u16 old;

	if (packet->flow.protocol == IPPROTO_SCTP)
		return 0;
	if ((void *)(port + 1) > data_end)
		return -1;
	*port = endpoint->port;
	/* RFC 792 requires only 8 bytes, which exclude the TCP checksum. */
	if (end > packet->l3 + packet->length || (void *)(check + 1) > data_end)
		return written;
	old = *check;
	if (!is_tcp && !old)
		return written;
	csum_apply(check, change + written);
	if (!is_tcp && !*check)
		*check = 0xffff;
	return csum_change16(written, old, *check);
}

/* The ICMP checksum covers the quoted packet, whose source becomes the endpoint. */
static __always_inline int icmp_translate_ipv4(struct xdp_md *ctx, const struct packet *packet,
					       const struct endpoint *endpoint)
{
	struct iphdr *ip = frame_at(ctx, packet->l3), *embedded;
	void *data_end = (void *)(long)ctx->data_end;
	__be32 to = endpoint->address.word[3];
	struct icmp *icmp;
	__u64 change, total;
	__s64 written;
	__u32 offset;
	__u16 old;

	if ((void *)(ip + 1) > data_end)
		return -1;
	change = csum_change(0, ip->daddr, to);
	ip->daddr = to;
	change = csum_change16(change, bpf_htons(ip->tos), bpf_htons(packet->tos));
	csum_apply(&ip->check, change + raise_ttl(ip));
	ip->tos = packet->tos;
	embedded = frame_at(ctx, packet->l4 + sizeof(*icmp));
	if ((void *)(embedded + 1) > data_end)
		return -1;
	change = csum_change(0, embedded->saddr, to);
	embedded->saddr = to;
	old = embedded->check;
	csum_apply(&embedded->check, change);
	total = csum_change16(change, old, embedded->check);
	offset = packet->l4 + sizeof(*icmp) + embedded->ihl * 4;
	written = rewrite_embedded_l4(ctx, packet, endpoint, offset, change);
	icmp = frame_at(ctx, packet->l4);
	if (written < 0 || (void *)(icmp + 1) > data_end)
		return -1;
	csum_apply(&icmp->check, total + written);
	return 0;
}

/* The ICMPv6 checksum also covers the outer addresses. */
static __always_inline int icmp_translate_ipv6(struct xdp_md *ctx, const struct packet *packet,
					       const struct endpoint *endpoint)
{
	struct ipv6hdr *ip = frame_at(ctx, packet->l3), *embedded;
	void *data_end = (void *)(long)ctx->data_end;
	__u64 change = 0;
	struct icmp *icmp;
	__s64 written;
	__u32 offset;

	embedded = frame_at(ctx, packet->l4 + sizeof(*icmp));
	if ((void *)(ip + 1) > data_end || (void *)(embedded + 1) > data_end)
		return -1;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		change = csum_change(change, ip->daddr.in6_u.u6_addr32[i],
				     endpoint->address.word[i]);
		ip->daddr.in6_u.u6_addr32[i] = endpoint->address.word[i];
		embedded->saddr.in6_u.u6_addr32[i] = endpoint->address.word[i];
	}
	ip->priority = packet->tos >> 4;
	ip->flow_lbl[0] = (packet->tos & 0xf) << 4 | (ip->flow_lbl[0] & 0xf);
	if (ip->hop_limit < DELIVERED_TTL)
		ip->hop_limit = DELIVERED_TTL;
	offset = packet->l4 + sizeof(*icmp) + sizeof(*embedded);
	if (embedded->nexthdr == IPV6_FRAGMENT)
		offset += sizeof(struct ipv6_fragment);
	written = rewrite_embedded_l4(ctx, packet, endpoint, offset, change);
	icmp = frame_at(ctx, packet->l4);
	if (written < 0 || (void *)(icmp + 1) > data_end)
		return -1;
	csum_apply(&icmp->check, 2 * change + written);
	return 0;
}

__noinline int icmp_deliver(struct xdp_md *ctx, struct packet *packet,
			    const struct endpoint *endpoint)
{
	int failed;

	if (!packet || !endpoint)
		return XDP_ABORTED;
	if (packet->l3 != sizeof(struct ethhdr) && decapsulate(ctx, packet))
		return drop(DROP_HEADROOM);
	if (packet->flow.family == ADDRESS_FAMILY_IPV4)
		failed = icmp_translate_ipv4(ctx, packet, endpoint);
	else
		failed = icmp_translate_ipv6(ctx, packet, endpoint);
	if (failed)
		return drop(DROP_MALFORMED);
	trace_step(TRACE_DELIVERED);
	return XDP_PASS;
}
