/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack.h"
#include "csum.h"
#include "icmp.h"
#include "packet_slot.h"

/* ICMP errors to a client: restores the VIP as their source and as the quoted destination. */

/* Offsets from the start of the frame. */
struct error_reply {
	struct __sk_buff *skb;
	/* Of the ICMP message. */
	__u32 check;
	/* Of the quoted transport header. */
	__u32 l4;
	__u8 protocol;
	__be16 ports[2];
};

static __always_inline long change_word(const struct error_reply *error, __u32 offset, __u16 from,
					__u16 to)
{
	long failed = bpf_l4_csum_replace(error->skb, error->check, from, to, sizeof(to));

	return failed ?: bpf_skb_store_bytes(error->skb, offset, &to, sizeof(to), 0);
}

/* change is that of the pseudo-header. SCTP headers are not changed (sctp.h). */
static __always_inline long restore_embedded_l4(const struct error_reply *error, __be16 port,
						__u64 change)
{
	__u32 offset =
		error->l4 + (error->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
							      offsetof(struct udphdr, check));
	__u16 from, to;

	if (error->protocol == IPPROTO_SCTP)
		return 0;
	if (change_word(error, error->l4 + sizeof(port), error->ports[1], port))
		return -1;
	if (bpf_skb_load_bytes(error->skb, offset, &from, sizeof(from)))
		return 0;
	if (!from && error->protocol == IPPROTO_UDP)
		return 0;
	to = from;
	csum_apply(&to, csum_change16(change, error->ports[1], port));
	if (!to && error->protocol == IPPROTO_UDP)
		to = 0xffff;
	return change_word(error, offset, from, to);
}

static __always_inline int read_embedded_reply(struct error_reply *error)
{
	if (error->protocol != IPPROTO_TCP && error->protocol != IPPROTO_UDP &&
	    error->protocol != IPPROTO_SCTP)
		return -1;
	return bpf_skb_load_bytes(error->skb, error->l4, error->ports, sizeof(error->ports));
}

/* __noinline to limit stack usage. l3 and inner are the offsets of the IP headers. */
static __noinline long restore_ipv4(const struct error_reply *error, __u32 l3, __u32 inner,
				    const struct iphdr *ip, const struct reverse *reverse)
{
	__be32 vip = reverse->vip.word[3], from;
	__u64 change = csum_change(0, ip->daddr, vip);
	__u16 check = ip->check;

	csum_apply(&check, change);
	if (change_word(error, inner + offsetof(struct iphdr, check), ip->check, check))
		return -1;
	if (bpf_l4_csum_replace(error->skb, error->check, ip->daddr, vip, sizeof(vip)) ||
	    bpf_skb_store_bytes(error->skb, inner + offsetof(struct iphdr, daddr), &vip,
				sizeof(vip), 0) ||
	    restore_embedded_l4(error, reverse->vip_port, change))
		return -1;
	if (bpf_skb_load_bytes(error->skb, l3 + offsetof(struct iphdr, saddr), &from,
			       sizeof(from)) ||
	    bpf_l3_csum_replace(error->skb, l3 + offsetof(struct iphdr, check), from, vip,
				sizeof(from)))
		return -1;
	return bpf_skb_store_bytes(error->skb, l3 + offsetof(struct iphdr, saddr), &vip,
				   sizeof(vip), 0);
}

/* Returns 0, or a negative error if the packet was partially rewritten. */
__noinline long icmp_reply_ipv4(struct __sk_buff *skb, __u32 l3, __u32 l4)
{
	struct error_reply error = { .skb = skb, .check = l4 + offsetof(struct icmp, check) };
	struct reply_slot *slot = reply_slot();
	struct iphdr ip;

	if (!slot || bpf_skb_load_bytes(skb, l4, &error.protocol, sizeof(error.protocol)) ||
	    !is_icmp_error(error.protocol))
		return 0;
	l4 += sizeof(struct icmp);
	if (bpf_skb_load_bytes(skb, l4, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5 ||
	    ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return 0;
	error.protocol = ip.protocol;
	error.l4 = l4 + ip.ihl * 4;
	if (read_embedded_reply(&error))
		return 0;
	slot->key4 = reverse_key4_of(ip.daddr, ip.saddr, two_ports(error.ports[1], error.ports[0]),
				     ip.protocol);
	if (!reverse_copy4(&slot->key4, &slot->reverse))
		return 0;
	return restore_ipv4(&error, l3, l4, &ip, &slot->reverse);
}

/* Replaces an IPv6 address by the VIP. flags: BPF_F_PSEUDO_HDR if it is in the pseudo-header. */
static __always_inline long change_address(const struct error_reply *error, __u32 offset,
					   struct address *vip, __u64 flags)
{
	struct address from;
	__s64 change;

	if (bpf_skb_load_bytes(error->skb, offset, &from, sizeof(from)))
		return -1;
	change = bpf_csum_diff(from.word, sizeof(from), vip->word, sizeof(*vip), 0);
	if (bpf_l4_csum_replace(error->skb, error->check, 0, change, flags))
		return -1;
	return bpf_skb_store_bytes(error->skb, offset, vip, sizeof(*vip), 0);
}

static __always_inline long read_embedded_reply6(struct error_reply *error, __u8 protocol)
{
	struct ipv6_fragment fragment;

	error->protocol = protocol;
	if (protocol == IPV6_FRAGMENT) {
		if (bpf_skb_load_bytes(error->skb, error->l4, &fragment, sizeof(fragment)) ||
		    fragment.offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
			return -1;
		error->protocol = fragment.next;
		error->l4 += sizeof(fragment);
	}
	return read_embedded_reply(error);
}

__noinline long icmp_reply_ipv6(struct __sk_buff *skb, __u32 l3, __u32 l4)
{
	struct error_reply error = { .skb = skb, .check = l4 + offsetof(struct icmp, check) };
	struct reply_slot *slot = reply_slot();
	struct address *vip;
	__u64 change = 0;
	__u8 byte;

	if (!slot || bpf_skb_load_bytes(skb, l4, &byte, sizeof(byte)) || !is_icmpv6_error(byte))
		return 0;
	l4 += sizeof(struct icmp);
	error.l4 = l4 + sizeof(struct ipv6hdr);
	if (bpf_skb_load_bytes(skb, l4 + offsetof(struct ipv6hdr, nexthdr), &byte, sizeof(byte)) ||
	    bpf_skb_load_bytes(skb, l4 + offsetof(struct ipv6hdr, saddr), &slot->key6.client,
			       sizeof(slot->key6.client)) ||
	    bpf_skb_load_bytes(skb, l4 + offsetof(struct ipv6hdr, daddr), &slot->key6.endpoint,
			       sizeof(slot->key6.endpoint)) ||
	    read_embedded_reply6(&error, byte))
		return 0;
	reverse_key6_ends(&slot->key6, two_ports(error.ports[1], error.ports[0]), error.protocol);
	if (!reverse_copy6(&slot->key6, &slot->reverse))
		return 0;
	vip = &slot->reverse.vip;
#pragma unroll
	for (int i = 0; i < 4; i++)
		change = csum_change(change, slot->key6.endpoint.word[i], vip->word[i]);
	if (restore_embedded_l4(&error, slot->reverse.vip_port, change) ||
	    change_address(&error, l4 + offsetof(struct ipv6hdr, daddr), vip, 0))
		return -1;
	return change_address(&error, l3 + offsetof(struct ipv6hdr, saddr), vip, BPF_F_PSEUDO_HDR);
}
