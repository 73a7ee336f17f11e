/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "clock.h"
#include "hash.h"
#include "maps.h"
#include "trace.h"

/* Rate limit of replies sent on behalf of VIPs, because requests can be spoofed. */

/* Per kind: slot 0 for all VIPs, then slots by keyed hash of the VIP, then of the source. */

static __always_inline __u32 answer_vip_slot(const struct flow *flow, enum answer_kind kind)
{
	return kind * ANSWER_SLOTS + 1 + hash_slot(hash_vip(flow->vip.word), ANSWER_VIPS);
}

/* IPv6 sources are aggregated by /64. */
static __always_inline __u32 answer_source_slot(const struct flow *flow, enum answer_kind kind)
{
	return kind * ANSWER_SLOTS + 1 + ANSWER_VIPS +
	       hash_slot(hash_source(flow, 0xffffffff), ANSWER_SOURCES);
}

static __always_inline int answer_left(__u32 slot, __u32 limit)
{
	struct answers *answers = bpf_map_lookup_elem(&answer_counts, &slot);

	return answers && (answers->given < limit || clock_passed(answers->since, 1));
}

static __always_inline int take_answer(__u32 slot, __u32 limit)
{
	struct answers *answers = bpf_map_lookup_elem(&answer_counts, &slot);

	if (!answers)
		return 0;
	if (tracing)
		return answers->given < limit || clock_passed(answers->since, 1);
	if (clock_passed(answers->since, 1)) {
		answers->since = clock_now();
		answers->given = 0;
	}
	if (answers->given >= limit)
		return 0;
	__sync_fetch_and_add(&answers->given, 1);
	return 1;
}

/* The source's token is consumed last: a flood of one VIP must not exhaust source slots. */
static __always_inline int answer_allowed(const struct flow *flow, enum answer_kind kind)
{
	__u32 source = answer_source_slot(flow, kind);

	return answer_left(source, ANSWERS_PER_SOURCE) &&
	       (take_answer(answer_vip_slot(flow, kind), ANSWERS_PER_VIP) ||
		take_answer(kind * ANSWER_SLOTS, ANSWERS_IN_ALL)) &&
	       take_answer(source, ANSWERS_PER_SOURCE);
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
