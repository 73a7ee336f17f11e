/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "quota.h"
#include "maps.h"
#include "trace.h"

/* Fragments. Only the first has ports. It notes them for the later ones, which then take the
 * path of its flow: from the ingress node to the node that serves it, and there to the
 * endpoint. A later fragment before its first, or on another ingress node, is dropped. The
 * first fragment of a reply notes the VIP.
 */

/* Which part of a datagram a packet is; none if it is whole. */
enum fragment_part {
	FRAGMENT_NONE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER,
};

/* RFC 791 section 3.2 and RFC 8200 section 4.5 allow reassembly up to 60 s. Linux waits 30 s. */
#define FRAGMENT_SECONDS 30

/* Addresses and protocol as the flow has them. */
static __always_inline struct fragment_key fragment_key(const struct flow *flow, __be32 id,
							__u8 protocol)
{
	struct fragment_key key = {
		.from = flow->client,
		.to = flow->vip,
		.id = id,
		/* RFC 8200 section 4.5: an IPv6 identification stands for all protocols. */
		.protocol = flow->family == ADDRESS_FAMILY_IPV4 ? protocol : 0,
	};

	return key;
}

/* Notes what later fragments lack. Returns zero, or a negative error. */
static __always_inline long fragment_add(const struct fragment_key *key,
					 const struct fragment *fragment)
{
	if (quota_take(&fragment->vip, QUOTA_FRAGMENTS))
		return map_update(&overflow_fragments, key, fragment, BPF_ANY);
	return map_update(&fragments, key, fragment, BPF_ANY);
}

/* vip is NULL for a reply: it does not show its VIP. */
static __always_inline struct fragment *fragment_find(const struct fragment_key *key,
						      const struct address *vip)
{
	struct fragment *fragment = bpf_map_lookup_elem(&fragments, key);

	if (fragment && !clock_passed(fragment->seen, FRAGMENT_SECONDS))
		return fragment;
	if (vip ? !vip_overflows(vip, QUOTA_FRAGMENTS) : !any_overflows(QUOTA_FRAGMENTS))
		return NULL;
	fragment = bpf_map_lookup_elem(&overflow_fragments, key);
	return fragment && !clock_passed(fragment->seen, FRAGMENT_SECONDS) ? fragment : NULL;
}

/* A datagram's fragments arrive one after the other. For so long a second first fragment, which may be
 * forged, does not replace what the first one noted. Later it does, because clients use identifications
 * again.
 */
#define FRAGMENT_KEPT_SECONDS 1

static __always_inline long fragment_note(const struct fragment_key *key, const struct flow *flow)
{
	struct fragment fragment = {
		.vip = flow->vip,
		.client_port = flow->client_port,
		.vip_port = flow->vip_port,
		.protocol = flow->protocol,
		.seen = clock_now(),
	};
	struct fragment *known = fragment_find(key, &flow->vip);

	if (known && !clock_passed(known->seen, FRAGMENT_KEPT_SECONDS))
		return 0;
	return fragment_add(key, &fragment);
}

/* Notes the flow of a first fragment, or completes that of a later one. */
__noinline int join_fragment(struct packet *packet, __be32 id, __u32 protocol, __u32 part)
{
	struct fragment *fragment;
	struct fragment_key key;

	if (!packet)
		return DROP_FRAGMENT;
	key = fragment_key(&packet->flow, id, protocol);
	if (part == FRAGMENT_FIRST)
		return fragment_note(&key, &packet->flow) ? DROP_FRAGMENT : DROP_NONE;
	fragment = fragment_find(&key, &packet->flow.vip);
	if (!fragment)
		return DROP_FRAGMENT_EARLY;
	packet->flow.client_port = fragment->client_port;
	packet->flow.vip_port = fragment->vip_port;
	packet->flow.protocol = fragment->protocol;
	packet->kind = PACKET_LATER_FRAGMENT;
	return DROP_NONE;
}
