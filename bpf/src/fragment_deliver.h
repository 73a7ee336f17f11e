/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "deliver.h"
#include "verdict.h"

/* Delivers a later fragment, which has neither ports nor an L4 checksum. */
__noinline int fragment_deliver(struct xdp_md *ctx, struct packet *packet,
				const struct endpoint *endpoint)
{
	void *header, *data_end;

	if (!packet || !endpoint)
		return XDP_ABORTED;
	if (packet->l3 != sizeof(struct ethhdr) && decapsulate(ctx, packet))
		return drop(DROP_HEADROOM);
	header = (void *)(long)ctx->data + sizeof(struct ethhdr);
	data_end = (void *)(long)ctx->data_end;
	if (packet->flow.family == ADDRESS_FAMILY_IPV4) {
		struct iphdr *ip = header;
		__be32 to = endpoint->address.word[3];
		__u64 change;

		if ((void *)(ip + 1) > data_end)
			return drop(DROP_MALFORMED);
		change = csum_change(0, ip->daddr, to);
		ip->daddr = to;
		change = csum_change16(change, bpf_htons(ip->tos), bpf_htons(packet->tos));
		csum_apply(&ip->check, change + raise_ttl(ip));
		ip->tos = packet->tos;
	} else {
		struct ipv6hdr *ip = header;

		if ((void *)(ip + 1) > data_end)
			return drop(DROP_MALFORMED);
		__builtin_memcpy(&ip->daddr, &endpoint->address, sizeof(ip->daddr));
		ip->priority = packet->tos >> 4;
		ip->flow_lbl[0] = (packet->tos & 0xf) << 4 | (ip->flow_lbl[0] & 0xf);
		if (ip->hop_limit < DELIVERED_TTL)
			ip->hop_limit = DELIVERED_TTL;
	}
	trace_step(TRACE_DELIVERED);
	return XDP_PASS;
}
