/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "maps.h"
#include "trace.h"

/* Fragments of a datagram. Only the first has ports; it leaves them for the others, which
 * then go the way of its flow: from the node that the router chose to the one that serves
 * it, and there to the endpoint. A later one that comes before its first, or by another
 * node, is dropped. The other way round the first fragment of a reply leaves the VIP.
 */

/* Whole, or which part of a datagram. */
enum fragment_part {
	FRAGMENT_NONE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER,
};

/* RFC 791 section 3.2 and RFC 8200 section 4.5 give a datagram up to 60 s to be complete; what
 * Linux waits is half of it.
 */
#define FRAGMENT_SECONDS 30

/* Addresses and protocol as the flow has them. */
static __always_inline struct fragment_key fragment_key(const struct flow *flow, __be32 id,
							__u8 protocol)
{
	struct fragment_key key = {
		.from = flow->client,
		.to = flow->vip,
		.id = id,
		/* RFC 8200 section 4.5: with IPv6 the identification alone tells. */
		.protocol = flow->family == ADDRESS_FAMILY_IPV4 ? protocol : 0,
	};

	return key;
}

/* Notes what later fragments of the same datagram lack; zero, or a negative error. */
static __always_inline long fragment_note(const struct fragment_key *key, const struct flow *flow)
{
	struct fragment fragment = {
		.vip = flow->vip,
		.client_port = flow->client_port,
		.vip_port = flow->vip_port,
		.protocol = flow->protocol,
		.seen = clock_now(),
	};

	return map_update(&fragments, key, &fragment, BPF_ANY);
}

static __always_inline struct fragment *fragment_find(const struct fragment_key *key)
{
	struct fragment *fragment = bpf_map_lookup_elem(&fragments, key);

	return fragment && !clock_passed(fragment->seen, FRAGMENT_SECONDS) ? fragment : NULL;
}

/* Completes the flow of a later fragment, or leaves it for the others of a first one. */
__noinline int join_fragment(struct packet *packet, __be32 id, __u32 protocol, __u32 part)
{
	struct fragment *fragment;
	struct fragment_key key;

	if (!packet)
		return DROP_FRAGMENT;
	key = fragment_key(&packet->flow, id, protocol);
	if (part == FRAGMENT_FIRST)
		return fragment_note(&key, &packet->flow) ? DROP_FRAGMENT : DROP_NONE;
	fragment = fragment_find(&key);
	if (!fragment)
		return DROP_FRAGMENT_EARLY;
	packet->flow.client_port = fragment->client_port;
	packet->flow.vip_port = fragment->vip_port;
	packet->flow.protocol = fragment->protocol;
	packet->kind = PACKET_LATER_FRAGMENT;
	return DROP_NONE;
}
