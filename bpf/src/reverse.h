/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack.h"
#include "mss.h"

/* What the endpoints answer gets the VIP and its port as its source again. */

/* A TCP or UDP packet on its way out. */
struct reply {
	__u32 l4;
	__u8 protocol;
	__u8 tcp_flags;
	__be16 source_port;
	__be16 destination_port;
};

/* The part of the header that TCP and UDP need here. */
struct l4_start {
	__be16 source;
	__be16 destination;
	__u32 sequence;
	__u32 acknowledgement;
	__u8 offset;
	__u8 flags;
};

static __always_inline int read_reply(struct __sk_buff *skb, struct reply *reply)
{
	struct l4_start start = {};
	__u32 length = reply->protocol == IPPROTO_TCP ? sizeof(start) : 4;

	if (reply->protocol != IPPROTO_TCP && reply->protocol != IPPROTO_UDP)
		return -1;
	if (bpf_skb_load_bytes(skb, reply->l4, &start, length))
		return -1;
	reply->source_port = start.source;
	reply->destination_port = start.destination;
	reply->tcp_flags = start.flags;
	return 0;
}

static __always_inline void note_server(const struct reply *reply, struct reverse *reverse)
{
	if (reply->tcp_flags & TCP_FIN && !(reverse->flags & SERVER_FIN))
		reverse->flags |= SERVER_FIN;
	if (reply->tcp_flags & TCP_RST && !(reverse->flags & SERVER_RST))
		reverse->flags |= SERVER_RST;
}

static __always_inline int is_syn_ack(const struct reply *reply)
{
	return (reply->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
}

static __always_inline __u32 check_offset(const struct reply *reply)
{
	return reply->l4 + (reply->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
							     offsetof(struct udphdr, check));
}

/* Puts the VIP's port into the header. Of UDP, a checksum of zero stays none. */
static __always_inline void write_source_port(struct __sk_buff *skb, const struct reply *reply,
					      const struct reverse *reverse, __u64 udp)
{
	bpf_l4_csum_replace(skb, check_offset(reply), reply->source_port, reverse->vip_port,
			    udp | sizeof(reverse->vip_port));
	/* The source port is the first field of both headers. */
	bpf_skb_store_bytes(skb, reply->l4, &reverse->vip_port, sizeof(reverse->vip_port), 0);
}

static __always_inline void reply_ipv4(struct __sk_buff *skb)
{
	const __u32 l3 = sizeof(struct ethhdr);
	struct reverse *found, reverse;
	struct reply reply = {};
	struct iphdr ip;
	__u64 udp;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return;
	if (ip.ihl < 5 || ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return;
	reply.protocol = ip.protocol;
	reply.l4 = l3 + ip.ihl * 4;
	if (read_reply(skb, &reply))
		return;

	struct reverse_key4 key = {
		.endpoint = ip.saddr,
		.client = ip.daddr,
		.endpoint_port = reply.source_port,
		.client_port = reply.destination_port,
		.protocol = reply.protocol,
	};

	found = reverse_find4(&key);
	if (!found)
		return;
	note_server(&reply, found);
	reverse = *found;
	udp = reply.protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	bpf_l4_csum_replace(skb, check_offset(&reply), ip.saddr, reverse.vip.word[3],
			    udp | BPF_F_PSEUDO_HDR | sizeof(ip.saddr));
	write_source_port(skb, &reply, &reverse, udp);
	bpf_l3_csum_replace(skb, l3 + offsetof(struct iphdr, check), ip.saddr, reverse.vip.word[3],
			    sizeof(ip.saddr));
	bpf_skb_store_bytes(skb, l3 + offsetof(struct iphdr, saddr), &reverse.vip.word[3],
			    sizeof(ip.saddr), 0);
	if (reverse.flags & REVERSE_CLAMP && is_syn_ack(&reply))
		mss_clamp(skb, reply.l4, sizeof(struct iphdr) + sizeof(struct tcphdr));
}

static __always_inline void reply_ipv6(struct __sk_buff *skb)
{
	const __u32 l3 = sizeof(struct ethhdr);
	struct reverse *found, reverse;
	struct reverse_key6 key = {};
	struct reply reply = {};
	struct ipv6hdr ip;
	__s64 change;
	__u64 udp;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return;
	reply.protocol = ip.nexthdr;
	reply.l4 = l3 + sizeof(ip);
	if (read_reply(skb, &reply))
		return;
	__builtin_memcpy(&key.endpoint, &ip.saddr, sizeof(key.endpoint));
	__builtin_memcpy(&key.client, &ip.daddr, sizeof(key.client));
	key.endpoint_port = reply.source_port;
	key.client_port = reply.destination_port;
	key.protocol = reply.protocol;
	found = reverse_find6(&key);
	if (!found)
		return;
	note_server(&reply, found);
	reverse = *found;
	udp = reply.protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	change = bpf_csum_diff((__be32 *)&key.endpoint, sizeof(key.endpoint),
			       (__be32 *)&reverse.vip, sizeof(reverse.vip), 0);
	bpf_l4_csum_replace(skb, check_offset(&reply), 0, change, udp | BPF_F_PSEUDO_HDR);
	write_source_port(skb, &reply, &reverse, udp);
	bpf_skb_store_bytes(skb, l3 + offsetof(struct ipv6hdr, saddr), &reverse.vip,
			    sizeof(reverse.vip), 0);
	if (reverse.flags & REVERSE_CLAMP && is_syn_ack(&reply))
		mss_clamp(skb, reply.l4, sizeof(struct ipv6hdr) + sizeof(struct tcphdr));
}
