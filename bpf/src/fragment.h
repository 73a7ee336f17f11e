/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "quota.h"
#include "maps.h"
#include "trace.h"

/* IP fragments. Only the first fragment has ports. It is recorded, so that later fragments follow
 * the flow's path on the ingress node and the serving node. Later fragments that arrive before the
 * first, or on another ingress node, are dropped. For replies the VIP is recorded.
 */

enum fragment_part {
	FRAGMENT_NONE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER,
};

/* Reassembly timeout of Linux. RFC 791 section 3.2 and RFC 8200 section 4.5 allow 60 s. */
#define FRAGMENT_SECONDS 30

static __always_inline struct fragment_key fragment_key(const struct flow *flow, __be32 id,
							__u8 protocol)
{
	struct fragment_key key = {
		.from = flow->client,
		.to = flow->vip,
		.id = id,
		/* IPv6 identifications are independent of the protocol (RFC 8200 section 4.5). */
		.protocol = flow->family == ADDRESS_FAMILY_IPV4 ? protocol : 0,
	};

	return key;
}

/* Returns 0 or a negative error. */
static __always_inline long fragment_add(const struct fragment_key *key,
					 const struct fragment *fragment)
{
	if (quota_take(&fragment->vip, QUOTA_FRAGMENTS))
		return map_update(&overflow_fragments, key, fragment, BPF_ANY);
	return map_update(&fragments, key, fragment, BPF_ANY);
}

/* vip is NULL for a reply, whose VIP is unknown. */
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

/* A possibly forged first fragment does not replace a record of this age, in seconds. */
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

/* Records a first fragment, or fills in the flow of a later one. */
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
		return DROP_FIRST_FRAGMENT_MISSING;
	packet->flow.client_port = fragment->client_port;
	packet->flow.vip_port = fragment->vip_port;
	packet->flow.protocol = fragment->protocol;
	packet->kind = PACKET_LATER_FRAGMENT;
	return DROP_NONE;
}
