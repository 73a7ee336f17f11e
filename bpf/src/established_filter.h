/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "exception_table.h"
#include "maps.h"
#include "trace.h"

/* A Bloom filter of the clients, by address and port, that have established TCP connections. A
 * lookup of a flow that is in no table costs more than one that finds it, and a SYN needs two of
 * them. Most SYNs are told by the filter that there is nothing to find. It is small, so that it
 * stays in the caches: two bits of a word of 64 for each client.
 *
 * Only connections with proof are noted, so spoofed packets cannot fill it. Entries that the
 * tables forget stay noted. So there are two copies: the agent clears one, notes all entries in it
 * and then declares it whole (dataplane/established.go). Programs read the copy that is whole, if
 * one is, and note in both: after the entry is written, so that what was noted before the copy was
 * cleared is found among the entries after that.
 */

/* The number of words of a copy less one; a power of two less one. Set by the loader. */
volatile const __u32 established_filter_mask;

/* What the last word says. */
enum whole_copy {
	NO_COPY,
	FIRST_COPY,
	SECOND_COPY,
};

/* What the filter and the table of half-open flows have of a client. */
static __always_inline __u64 client_print4(__u32 client, __be16 port, __u8 protocol)
{
	return exception_print4(client, 0, two_ports(port, 0), protocol);
}

static __always_inline __u64 client_print6(const __be32 *client, __be16 port, __u8 protocol)
{
	const __be32 none[4] = {};

	return exception_print6(client, none, two_ports(port, 0), protocol);
}

static __always_inline __u64 client_print(const struct flow *flow)
{
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return client_print4(flow->client.word[3], flow->client_port, flow->protocol);
	return client_print6(flow->client.word, flow->client_port, flow->protocol);
}

/* The word of a print. The bits of the print below are for other tables. */
static __always_inline __u64 *established_word(enum whole_copy copy, __u64 print)
{
	__u32 place = print >> 20 & established_filter_mask;

	if (copy == SECOND_COPY)
		place += established_filter_mask + 1;
	return bpf_map_lookup_elem(&established_filter, &place);
}

static __always_inline __u64 established_bits(__u64 print)
{
	return 1ULL << (print >> 58) | 1ULL << (print >> 52 & 63);
}

/* Reports whether a connection of the client may be established, from its address and port to any
 * VIP. Of other protocols nothing is noted.
 */
static __always_inline int may_be_established(__u64 print, __u8 protocol)
{
	__u32 last = 2 * (established_filter_mask + 1);
	__u64 *whole, *word, bits = established_bits(print);

	if (protocol != IPPROTO_TCP)
		return 1;
	whole = bpf_map_lookup_elem(&established_filter, &last);
	if (!whole || *whole == NO_COPY)
		return 1;
	word = established_word(*whole, print);
	return !word || (*word & bits) == bits;
}

/* Notes the client of a flow whose entries were written. */
static __noinline void note_established(const struct flow *flow)
{
	__u64 print, bits, *word;

	if (flow->protocol != IPPROTO_TCP || tracing)
		return;
	print = client_print(flow);
	bits = established_bits(print);
	/* Always, not only where bits are missing: these instructions are barriers, too. */
	word = established_word(FIRST_COPY, print);
	if (word)
		__sync_fetch_and_or(word, bits);
	word = established_word(SECOND_COPY, print);
	if (word)
		__sync_fetch_and_or(word, bits);
}

/* Notes a flow that the agent has found in the tables. */
static long note_found(__u32 number, void *unused)
{
	struct flow *flow = bpf_map_lookup_elem(&noted_flows, &number);

	if (!flow)
		return 1;
	note_established(flow);
	return 0;
}
