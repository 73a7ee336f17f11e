/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "clock.h"
#include "hash.h"
#include "maps.h"
#include "trace.h"

/* Rate limit of replies sent on behalf of VIPs, because requests can be spoofed. */

/* Per kind: slot 0 for all VIPs, then slots by keyed hash of the VIP, then of the source. */

static __always_inline __u32 reply_vip_slot(const struct flow *flow, enum vip_reply_kind kind)
{
	return kind * REPLY_SLOTS + 1 + hash_slot(hash_vip(flow->vip.word), REPLY_VIPS);
}

/* IPv6 sources are aggregated by /64. */
static __always_inline __u32 reply_source_slot(const struct flow *flow, enum vip_reply_kind kind)
{
	return kind * REPLY_SLOTS + 1 + REPLY_VIPS +
	       hash_slot(hash_source(flow, 0xffffffff), REPLY_SOURCES);
}

static __always_inline int reply_is_below(__u32 slot, __u32 limit)
{
	struct reply_rate *rate = bpf_map_lookup_elem(&reply_rates, &slot);

	return rate && (rate->count < limit || clock_passed(rate->since, 1));
}

static __always_inline int reply_take(__u32 slot, __u32 limit)
{
	struct reply_rate *rate = bpf_map_lookup_elem(&reply_rates, &slot);

	if (!rate)
		return 0;
	if (tracing)
		return rate->count < limit || clock_passed(rate->since, 1);
	if (clock_passed(rate->since, 1)) {
		rate->since = clock_now();
		rate->count = 0;
	}
	if (rate->count >= limit)
		return 0;
	__sync_fetch_and_add(&rate->count, 1);
	return 1;
}

/* The source's token is consumed last: a flood of one VIP must not exhaust source slots. */
static __always_inline int reply_allowed(const struct flow *flow, enum vip_reply_kind kind)
{
	__u32 source = reply_source_slot(flow, kind);

	return reply_is_below(source, REPLIES_PER_SOURCE) &&
	       (reply_take(reply_vip_slot(flow, kind), REPLIES_PER_VIP) ||
		reply_take(kind * REPLY_SLOTS, REPLIES_TOTAL)) &&
	       reply_take(source, REPLIES_PER_SOURCE);
}

/* RFC 1122 section 3.2.2 and RFC 4443 section 2.4 (e) forbid replies to other addresses. */
static __always_inline int source_is_host(const struct flow *flow)
{
	__u32 first = bpf_ntohl(flow->family == ADDRESS_FAMILY_IPV4 ? flow->client.word[3] :
								      flow->client.word[0]) >>
		      24;

	if (flow->family == ADDRESS_FAMILY_IPV4)
		return first != 0 && first != 127 && first < 224;
	/* Unspecified, loopback and IPv4-embedding addresses begin with 32 zero bits. */
	return first != 0xff && flow->client.word[0];
}
