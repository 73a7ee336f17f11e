/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "override_table.h"
#include "maps.h"
#include "trace.h"

/* Bloom filter of the clients, by address and port, with established TCP connections, in two
 * copies. Failing lookups are expensive and a SYN needs two, so the filter must stay in the CPU
 * caches: it uses two bits of one 64-bit word per client.
 *
 * Only validated connections are added, so spoofed packets cannot fill it. Evicted entries are not
 * removed; instead the agent clears one copy, adds all table entries and declares it complete
 * (dataplane/established.go). Programs read the complete copy and write both, after the flow's
 * entry, so that the agent's scan finds any entry that was added before the copy was cleared.
 */

/* Number of words of a copy minus 1 (a power of two minus 1). Set by the loader. */
volatile const __u32 established_filter_mask;

/* Value of the last word: the complete copy. */
enum complete_copy {
	NO_COPY,
	FIRST_COPY,
	SECOND_COPY,
};

/* Fingerprint of a client, for the filter and the half-open table. */
static __always_inline __u64 client_fingerprint4(__u32 client, __be16 port, __u8 protocol)
{
	return flow_fingerprint4(client, 0, two_ports(port, 0), protocol);
}

static __always_inline __u64 client_fingerprint6(const __be32 *client, __be16 port, __u8 protocol)
{
	const __be32 none[4] = {};

	return flow_fingerprint6(client, none, two_ports(port, 0), protocol);
}

static __always_inline __u64 client_fingerprint(const struct flow *flow)
{
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return client_fingerprint4(flow->client.word[3], flow->client_port, flow->protocol);
	return client_fingerprint6(flow->client.word, flow->client_port, flow->protocol);
}

/* Uses bits of the fingerprint above those that other tables use. */
static __always_inline __u64 *established_word(enum complete_copy copy, __u64 fingerprint)
{
	__u32 place = fingerprint >> 20 & established_filter_mask;

	if (copy == SECOND_COPY)
		place += established_filter_mask + 1;
	return bpf_map_lookup_elem(&established_filter, &place);
}

static __always_inline __u64 established_bits(__u64 fingerprint)
{
	return 1ULL << (fingerprint >> 58) | 1ULL << (fingerprint >> 52 & 63);
}

/* Reports whether the client may have established connections, to any VIP. TCP only. */
static __always_inline int may_be_established(__u64 fingerprint, __u8 protocol)
{
	__u32 last = 2 * (established_filter_mask + 1);
	__u64 *whole, *word, bits = established_bits(fingerprint);

	if (protocol != IPPROTO_TCP)
		return 1;
	whole = bpf_map_lookup_elem(&established_filter, &last);
	if (!whole || *whole == NO_COPY)
		return 1;
	word = established_word(*whole, fingerprint);
	return !word || (*word & bits) == bits;
}

/* Called after the flow's entries are written. */
static __noinline void filter_add(const struct flow *flow)
{
	__u64 fingerprint, bits, *word;

	if (flow->protocol != IPPROTO_TCP || tracing)
		return;
	fingerprint = client_fingerprint(flow);
	bits = established_bits(fingerprint);
	/* Unconditional, because the atomic operations are also barriers. */
	word = established_word(FIRST_COPY, fingerprint);
	if (word)
		__sync_fetch_and_or(word, bits);
	word = established_word(SECOND_COPY, fingerprint);
	if (word)
		__sync_fetch_and_or(word, bits);
}

/* bpf_loop() callback over the agent's flows. */
static long filter_add_step(__u32 number, void *unused)
{
	struct flow *flow = bpf_map_lookup_elem(&filter_updates, &number);

	if (!flow)
		return 1;
	filter_add(flow);
	return 0;
}
