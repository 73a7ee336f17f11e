/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "drop_reason.h"
#include "geneve.h"
#include "parse.h"
#include "settings.h"
#include "vlan.h"

/* Egress filter: packets with our VNI leave a node only if its XDP program has encapsulated them.
 * XDP sends most of them directly; those passed to the kernel have a mark. All others are forged by
 * a pod or a process of the node.
 *
 * A pod cannot set the mark, because the kernel clears it when a packet leaves a network namespace.
 * Packets of processes on the node have no ingress interface.
 */

/* UDP_MAX_SEGMENTS of the kernel. */
#define UDP_SEGMENTS 128

/* Maximum number of extension headers to skip; receivers reject packets with any. */
#define EXTENSIONS 8

struct tunnel_start {
	struct udphdr udp;
	struct geneve geneve;
};

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == IPV6_HOP_BY_HOP || protocol == IPV6_ROUTING ||
	       protocol == IPV6_DESTINATION;
}

/* Marks a packet that the XDP program has passed to the kernel. */
static __always_inline void mark_sent(struct __sk_buff *skb)
{
	struct tunnel_policy *policy = tunnel_policy_get();

	if (policy)
		skb->mark = policy->mark;
}

/* The mark stays: a VLAN frame passes two interfaces, which may both be uplinks. */
static __always_inline int is_marked(const struct __sk_buff *skb,
				     const struct tunnel_policy *policy)
{
	return policy->mark && skb->mark == policy->mark && skb->ingress_ifindex;
}

/* Segments of a UDP GSO packet, which share the UDP header. */
struct segment_walk {
	struct __sk_buff *skb;
	__u32 position;
	__u32 found;
};

/* Another tunnel's payload may contain our VNI by chance, but rarely with an IP EtherType. */
static long segment_step(__u32 step, struct segment_walk *walk)
{
	struct geneve geneve;

	if (bpf_skb_load_bytes(walk->skb, walk->position, &geneve, sizeof(geneve)))
		return 1;
	walk->position += walk->skb->gso_size;
	if (!vni_is_ours(geneve.vni) || (step && geneve.protocol != bpf_htons(ETH_P_IP) &&
					 geneve.protocol != bpf_htons(ETH_P_IPV6)))
		return 0;
	walk->found = 1;
	return 1;
}

/* Includes GSO segments, and first fragments that are too short for a VNI. */
static __always_inline int has_our_vni(struct __sk_buff *skb, __u32 l4, int fragmented)
{
	struct segment_walk walk = { .skb = skb, .position = l4 + sizeof(struct udphdr) };
	struct tunnel_start start;
	struct udphdr udp;

	if (bpf_skb_load_bytes(skb, l4, &udp, sizeof(udp)) || udp.dest != bpf_htons(GENEVE_PORT))
		return 0;
	if (bpf_skb_load_bytes(skb, l4, &start, sizeof(start)))
		return fragmented;
	if (!skb->gso_size)
		return vni_is_ours(start.geneve.vni);
	bpf_loop(UDP_SEGMENTS, segment_step, &walk, 0);
	return walk.found;
}

struct transport_place {
	__u32 l4;
	__u8 protocol;
	__u8 fragmented;
	/* Later fragment, without a transport header. */
	__u8 later;
};

static __always_inline int find_ipv4_transport(struct __sk_buff *skb, __u32 l3,
					       struct transport_place *place)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return -1;
	place->l4 = l3 + ip.ihl * 4;
	place->protocol = ip.protocol;
	place->fragmented = !!(ip.frag_off & bpf_htons(IPV4_MORE_FRAGMENTS));
	place->later = !!(ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET));
	return 0;
}

static __always_inline int find_ipv6_transport(struct __sk_buff *skb, __u32 l3,
					       struct transport_place *place)
{
	struct ipv6_fragment header;
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return -1;
	place->l4 = l3 + sizeof(ip);
	place->protocol = ip.nexthdr;
	for (int i = 0; i < EXTENSIONS; i++) {
		if (!is_extension(place->protocol) && place->protocol != IPV6_FRAGMENT)
			return 0;
		if (bpf_skb_load_bytes(skb, place->l4, &header, sizeof(header)))
			return -1;
		if (place->protocol == IPV6_FRAGMENT) {
			place->fragmented = !!(header.offset & bpf_htons(IPV6_MORE_FRAGMENTS));
			place->later = !!(header.offset & bpf_htons(IPV6_FRAGMENT_OFFSET));
			place->l4 += sizeof(header);
		} else {
			/* RFC 8200 section 4.3: in 8-byte units, without the first. */
			place->l4 += (header.reserved + 1) * 8;
		}
		place->protocol = header.next;
		if (place->later)
			return 0;
	}
	return 0;
}

/* Returns 0 or DROP_TUNNEL_EGRESS. */
__noinline int filter_egress(struct __sk_buff *skb)
{
	struct transport_place place = {};
	__be16 protocol = skb->protocol;
	__u32 l3 = sizeof(struct ethhdr);
	struct tunnel_policy *policy = tunnel_policy_get();
	int flaw;

	for (int i = 0; i < VLAN_TAGS && is_vlan(protocol); i++) {
		l3 += VLAN_TAG_LENGTH;
		if (bpf_skb_load_bytes(skb, l3 - sizeof(protocol), &protocol, sizeof(protocol)))
			return 0;
	}
	if (protocol == bpf_htons(ETH_P_IP))
		flaw = find_ipv4_transport(skb, l3, &place);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		flaw = find_ipv6_transport(skb, l3, &place);
	else
		return 0;
	if (flaw || place.later || place.protocol != IPPROTO_UDP || !policy)
		return 0;
	if (!has_our_vni(skb, place.l4, place.fragmented))
		return 0;
	if (is_marked(skb, policy) && !place.fragmented)
		return 0;
	return policy->flags & POLICY_EGRESS ? DROP_TUNNEL_EGRESS : 0;
}
