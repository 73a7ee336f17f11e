/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include <bpf/bpf_helpers.h>

#include "fragment.h"
#include "parse.h"

/* Fragments of replies. client is the packet's source and vip its destination in these flows. */

static __always_inline void fragment_flow_ipv4(struct flow *flow, const struct iphdr *ip)
{
	flow->family = ADDRESS_FAMILY_IPV4;
	address_set_ipv4(&flow->client, ip->saddr);
	address_set_ipv4(&flow->vip, ip->daddr);
}

static __always_inline void fragment_flow_ipv6(struct flow *flow, const struct ipv6hdr *ip)
{
	flow->family = ADDRESS_FAMILY_IPV6;
	address_set_ipv6(&flow->client, &ip->saddr);
	address_set_ipv6(&flow->vip, &ip->daddr);
}

/* Records the VIP for later fragments. Returns 0 or a negative error. */
__noinline long reply_first_fragment(const struct flow *flow, __be32 id, __u32 protocol,
				     const struct address *vip)
{
	struct fragment fragment = { .seen = clock_now() };
	struct fragment_key key;

	if (!flow || !vip)
		return -1;
	key = fragment_key(flow, id, protocol);
	fragment.vip = *vip;
	return fragment_add(&key, &fragment);
}

/* Returns 0, or a negative error if the packet was partially rewritten. */
__noinline long reply_later_fragment(struct __sk_buff *skb, const struct flow *flow, __be32 id,
				     __u32 protocol)
{
	const __u32 l3 = sizeof(struct ethhdr);
	struct fragment *fragment;
	struct fragment_key key;
	struct address vip;

	if (!flow)
		return 0;
	key = fragment_key(flow, id, protocol);
	fragment = fragment_find(&key, NULL);
	if (!fragment)
		return 0;
	vip = fragment->vip;
	if (flow->family == ADDRESS_FAMILY_IPV6)
		return bpf_skb_store_bytes(skb, l3 + offsetof(struct ipv6hdr, saddr), &vip,
					   sizeof(vip), 0);
	if (bpf_l3_csum_replace(skb, l3 + offsetof(struct iphdr, check), flow->client.word[3],
				vip.word[3], sizeof(__be32)))
		return -1;
	return bpf_skb_store_bytes(skb, l3 + offsetof(struct iphdr, saddr), &vip.word[3],
				   sizeof(__be32), 0);
}
