/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "conntrack.h"
#include "count.h"
#include "flow_digest.h"
#include "reverse.h"

/* Replies that the stack treats as new connections because its conntrack entry expired before ours.
 * The CNI's NAT would translate their source before the egress program sees them
 * (docs/design/replies.md). Called once per connection tracked by the stack.
 */

/* Outgoing packet. The endpoint is in the place of the VIP. */
struct sent {
	struct flow reply;
	__u32 l4;
	__u8 tcp_flags;
};

static __always_inline long read_network(struct __sk_buff *skb, __u32 offset, void *to, __u32 size)
{
	return bpf_skb_load_bytes_relative(skb, offset, to, size, BPF_HDR_START_NET);
}

static __always_inline long read_sent_ipv4(struct __sk_buff *skb, struct sent *sent)
{
	struct iphdr ip;

	if (read_network(skb, 0, &ip, sizeof(ip)))
		return -1;
	if (ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return -1;
	sent->l4 = ip.ihl * 4;
	sent->reply.protocol = ip.protocol;
	sent->reply.family = ADDRESS_FAMILY_IPV4;
	address_set_ipv4(&sent->reply.client, ip.daddr);
	address_set_ipv4(&sent->reply.vip, ip.saddr);
	return 0;
}

static __always_inline long read_sent_ipv6(struct __sk_buff *skb, struct sent *sent)
{
	struct ipv6hdr ip;

	if (read_network(skb, 0, &ip, sizeof(ip)))
		return -1;
	sent->l4 = sizeof(ip);
	sent->reply.protocol = ip.nexthdr;
	sent->reply.family = ADDRESS_FAMILY_IPV6;
	address_set_ipv6(&sent->reply.client, &ip.daddr);
	address_set_ipv6(&sent->reply.vip, &ip.saddr);
	return 0;
}

/* Returns 0 for TCP, UDP and SCTP. The stack has reassembled fragments. */
static __always_inline long read_sent(struct __sk_buff *skb, struct sent *sent)
{
	struct l4_start start = {};
	__u32 size = 2 * sizeof(__be16);
	long failed = -1;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		failed = read_sent_ipv4(skb, sent);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		failed = read_sent_ipv6(skb, sent);
	if (failed)
		return failed;
	switch (sent->reply.protocol) {
	case IPPROTO_TCP:
		failed = read_network(skb, sent->l4, &start, sizeof(start));
		break;
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		failed = read_network(skb, sent->l4, &start, size);
		break;
	default:
		return -1;
	}
	sent->reply.vip_port = start.source;
	sent->reply.client_port = start.destination;
	sent->tcp_flags = start.flags;
	return failed;
}

/* Reports whether the egress program would find the flow. */
static __always_inline int is_known_reply(const struct flow *reply)
{
	struct flow flow = *reply;

	if (flow.family == ADDRESS_FAMILY_IPV4) {
		struct reverse_key4 key =
			reverse_key4_of(flow.vip.word[3], flow.client.word[3],
					two_ports(flow.vip_port, flow.client_port), flow.protocol);

		if (reverse_find4(&key, NULL))
			return 1;
	} else {
		struct endpoint endpoint = { .address = flow.vip, .port = flow.vip_port };
		struct reverse_key6 key = reverse_key6(&flow, &endpoint);

		if (reverse_find6(&key, NULL))
			return 1;
	}
	return digest_vip(&flow);
}

static __always_inline int exempt_from_nat(struct __sk_buff *skb)
{
	struct sent sent = {};

	if (read_sent(skb, &sent))
		return 0;
	/* The pod opens a connection, possibly from an endpoint's port. */
	if ((sent.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return 0;
	if (is_known_reply(&sent.reply))
		return 1;
	if (is_endpoint_port(&sent.reply.vip, sent.reply.vip_port))
		count_event(EVENT_REPLY_WITHOUT_FLOW);
	return 0;
}
