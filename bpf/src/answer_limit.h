/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "clock.h"
#include "maps.h"
#include "trace.h"

/* Rate limit of the VIP's own answers: requests can be spoofed. */

/* Slot 0 of a kind is for all sources together. Sources share the others by a hash, so a flood
 * of sources takes no memory.
 */
static __always_inline __u32 answer_slot(const struct flow *flow, enum answer_kind kind)
{
	const __be32 *word = flow->client.word;
	/* An IPv6 source is a /64. */
	__u32 source = flow->family == ADDRESS_FAMILY_IPV4 ?
			       word[3] : word[0] ^ (word[1] << 16 | word[1] >> 16);

	/* Fibonacci hashing: the upper bits of the product. */
	return kind * ANSWER_SLOTS + 1 + (source * 0x9e3779b1 >> (32 - ANSWER_SOURCE_BITS));
}

/* Reports whether the slot has an answer left in this second, and takes it. */
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

static __always_inline int answer_allowed(const struct flow *flow, enum answer_kind kind)
{
	return take_answer(answer_slot(flow, kind), ANSWERS_PER_SOURCE) &&
	       take_answer(kind * ANSWER_SLOTS, ANSWERS_IN_ALL);
}

/* Reports whether the source is a single host elsewhere. RFC 1122 section 3.2.2 and RFC 4443
 * section 2.4 (e) forbid answers to any other address.
 */
static __always_inline int source_is_host(const struct flow *flow)
{
	__u32 first = bpf_ntohl(flow->family == ADDRESS_FAMILY_IPV4 ? flow->client.word[3] :
								       flow->client.word[0]) >> 24;

	if (flow->family == ADDRESS_FAMILY_IPV4)
		return first != 0 && first != 127 && first < 224;
	/* The unspecified address, loopback and forms with an IPv4 address inside begin with
	 * 32 zero bits.
	 */
	return first != 0xff && flow->client.word[0];
}
