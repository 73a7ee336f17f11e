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
#include "csum.h"
#include "drop_sample.h"
#include "endpoint_source.h"
#include "fragment_reply.h"
#include "icmp_reply.h"
#include "flow_digest.h"
#include "mss_clamp.h"
#include "packet_slot.h"
#include "parse.h"
#include "validation.h"
#include "service_proxy.h"
#include "egress_filter.h"

/* Reverse translation of replies from the endpoint to the VIP. */

/* Outgoing TCP, UDP or SCTP packet. */
struct reply {
	__u32 l4;
	__u8 protocol;
	__u8 tcp_flags;
	__be16 source_port;
	__be16 destination_port;
	/* TCP only. */
	struct tcp_numbers numbers;
	/* BPF_F_MARK_MANGLED_0 for UDP. */
	__u64 mangled;
};

/* For UDP and SCTP only the ports are valid. */
struct l4_start {
	__be16 source;
	__be16 destination;
	__u32 sequence;
	__u32 acknowledgement;
	__u8 offset;
	__u8 flags;
};

/* No direct writes: they would make the kernel unclone every outgoing skb. */
static __always_inline int read_l4(struct __sk_buff *skb, const struct reply *reply,
				   struct l4_start *start)
{
	const struct l4_start *direct = (void *)(long)skb->data + reply->l4;

	if (reply->protocol != IPPROTO_TCP) {
		if ((void *)&direct->sequence > (void *)(long)skb->data_end)
			return bpf_skb_load_bytes(skb, reply->l4, start, 2 * sizeof(__be16));
		start->source = direct->source;
		start->destination = direct->destination;
		return 0;
	}
	if ((void *)(direct + 1) > (void *)(long)skb->data_end)
		return bpf_skb_load_bytes(skb, reply->l4, start, sizeof(*start));
	*start = *direct;
	return 0;
}

static __always_inline int read_ipv4(struct __sk_buff *skb, struct iphdr *ip)
{
	const struct iphdr *direct = (void *)(long)skb->data + sizeof(struct ethhdr);

	if ((void *)(direct + 1) > (void *)(long)skb->data_end)
		return bpf_skb_load_bytes(skb, sizeof(struct ethhdr), ip, sizeof(*ip));
	*ip = *direct;
	return 0;
}

static __always_inline int read_ipv6(struct __sk_buff *skb, struct ipv6hdr *ip)
{
	const struct ipv6hdr *direct = (void *)(long)skb->data + sizeof(struct ethhdr);

	if ((void *)(direct + 1) > (void *)(long)skb->data_end)
		return bpf_skb_load_bytes(skb, sizeof(struct ethhdr), ip, sizeof(*ip));
	*ip = *direct;
	return 0;
}

static __always_inline int read_reply(struct __sk_buff *skb, struct reply *reply)
{
	struct l4_start start = {};

	if (reply->protocol != IPPROTO_TCP && reply->protocol != IPPROTO_UDP &&
	    reply->protocol != IPPROTO_SCTP)
		return -1;
	if (read_l4(skb, reply, &start))
		return -1;
	reply->source_port = start.source;
	reply->destination_port = start.destination;
	reply->tcp_flags = start.flags;
	reply->numbers.sequence = bpf_ntohl(start.sequence);
	reply->numbers.acknowledged = bpf_ntohl(start.acknowledgement);
	reply->mangled = reply->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	return 0;
}

static __always_inline int is_syn_ack(const struct reply *reply)
{
	return (reply->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
}

static __always_inline int is_syn_ack_of_tcp(const struct reply *reply)
{
	return reply->protocol == IPPROTO_TCP && is_syn_ack(reply);
}

/* A packet after a reset shows that the reset was not accepted. */
static __always_inline void record_server_state(const struct reply *reply, struct reverse *reverse)
{
	__u32 flags = reverse->flags;

	if (reply->protocol != IPPROTO_TCP)
		return;
	if (reply->tcp_flags & TCP_ACK && reverse->acknowledged != reply->numbers.acknowledged)
		reverse->acknowledged = reply->numbers.acknowledged;
	if (reply->tcp_flags & TCP_RST)
		flags |= SERVER_RST;
	else
		flags &= ~SERVER_RST;
	if (reply->tcp_flags & TCP_FIN)
		flags |= SERVER_FIN;
	if (is_syn_ack(reply))
		flags &= ~SERVER_FIN;
	if (flags != reverse->flags)
		reverse->flags = flags;
}

/* Updates the validation state. Reports whether the reply belongs to the flow. */
static __always_inline int validate_reply(const struct reply *reply, struct reverse *reverse)
{
	int validation = VALIDATION_DONE;

	if (reply->protocol == IPPROTO_TCP)
		validation = validation_after_reply(reverse, reply->tcp_flags, &reply->numbers);
	if (validation < 0)
		return 0;
	reverse->validation = validation;
	if (is_syn_ack(reply))
		reverse->sequence = reply->numbers.sequence;
	return 1;
}

static __always_inline __u32 check_offset(const struct reply *reply)
{
	return reply->l4 + (reply->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
							     offsetof(struct udphdr, check));
}

/* End of the IP header and the port behind it. One store is cheaper than three. */
struct source4 {
	__be16 check;
	__be32 source;
	__be32 destination;
	__be16 port;
} __attribute__((packed));

struct source6 {
	struct address source;
	struct address destination;
	__be16 port;
} __attribute__((packed));

/* SCTP endpoints have the VIP's port (sctp.h). */
static __always_inline __be16 source_port(const struct reply *reply, const struct reverse *reverse)
{
	return reply->protocol == IPPROTO_SCTP ? reply->source_port : reverse->vip_port;
}

/* The source port is the first field of all headers. */
static __always_inline long write_port(struct __sk_buff *skb, const struct reply *reply,
				       __be16 port)
{
	return bpf_skb_store_bytes(skb, reply->l4, &port, sizeof(port), 0);
}

/* Updates the TCP or UDP checksum. With CHECKSUM_PARTIAL, which only the kernel knows, the field is
 * the sum of the pseudo-header, which excludes the port; hence two calls.
 */
static __always_inline long write_l4_check(struct __sk_buff *skb, const struct reply *reply,
					   const struct reverse *reverse, __u64 address)
{
	__u16 change = ~csum_fold(address);
	long failed;

	if (reply->protocol == IPPROTO_SCTP)
		return 0;
	failed = bpf_l4_csum_replace(skb, check_offset(reply), 0, change,
				     reply->mangled | BPF_F_PSEUDO_HDR);
	if (failed || reply->source_port == reverse->vip_port)
		return failed;
	return bpf_l4_csum_replace(skb, check_offset(reply), reply->source_port, reverse->vip_port,
				   reply->mangled | sizeof(reverse->vip_port));
}

static __always_inline long write_source_ipv4(struct __sk_buff *skb, const struct reply *reply,
					      const struct iphdr *ip, const struct reverse *reverse)
{
	const __u32 at = sizeof(struct ethhdr) + offsetof(struct iphdr, check);
	const __u64 change = csum_change(0, ip->saddr, reverse->vip.word[3]);
	struct source4 source = {
		.check = csum_fold((__u16)~ip->check + change),
		.source = reverse->vip.word[3],
		.destination = ip->daddr,
		.port = source_port(reply, reverse),
	};
	long failed = write_l4_check(skb, reply, reverse, change);

	if (ip->ihl * 4 == sizeof(*ip))
		return failed ?: bpf_skb_store_bytes(skb, at, &source, sizeof(source), 0);
	failed = failed ?:
			  bpf_skb_store_bytes(skb, at, &source,
					      offsetof(struct source4, destination), 0);
	return failed ?: write_port(skb, reply, source.port);
}

static __always_inline long write_source_ipv6(struct __sk_buff *skb, const struct reply *reply,
					      const struct reverse_key6 *key,
					      const struct reverse *reverse)
{
	const __u32 at = sizeof(struct ethhdr) + offsetof(struct ipv6hdr, saddr);
	struct source6 source = {
		.source = reverse->vip,
		.destination = key->client,
		.port = source_port(reply, reverse),
	};
	__u64 change = 0;
	long failed;

	for (int i = 0; i < 4; i++)
		change = csum_change(change, key->endpoint.word[i], reverse->vip.word[i]);
	failed = write_l4_check(skb, reply, reverse, change);
	if (reply->l4 == sizeof(struct ethhdr) + sizeof(struct ipv6hdr))
		return failed ?: bpf_skb_store_bytes(skb, at, &source, sizeof(source), 0);
	failed = failed ?: bpf_skb_store_bytes(skb, at, &source, sizeof(source.source), 0);
	return failed ?: write_port(skb, reply, source.port);
}

/* In reply the endpoint replaces the VIP. A SYN-ACK without entry is of a direct connection. */
__noinline int restore_from_digest(struct flow *reply, __u8 tcp_flags)
{
	struct reverse reverse = { .validation = VALIDATION_DONE };
	struct endpoint endpoint = {};

	if (!reply)
		return 0;
	endpoint.address = reply->vip;
	endpoint.port = reply->vip_port;
	if (!digest_vip(reply))
		return 0;
	if (tcp_flags & TCP_SYN) {
		digest_delete(reply);
		return 0;
	}
	reverse.vip = reply->vip;
	reverse.vip_port = reply->vip_port;
	if (reverse_add(reply, &endpoint, table_enter(reply, TABLE_ESTABLISHED), &reverse))
		return 0;
	filter_add(reply);
	return 1;
}

/* Return 0, a drop reason, or a negative error if the packet was partially rewritten. */

/* GSO packets may contain other VNIs than the first. */
static __always_inline int may_go_to_node(const struct __sk_buff *skb, const struct reply *reply)
{
	const struct tunnel_start *start = (void *)(long)skb->data + reply->l4;

	if (reply->protocol != IPPROTO_UDP || reply->destination_port != bpf_htons(GENEVE_PORT))
		return 0;
	return skb->gso_size || (void *)(start + 1) > (void *)(long)skb->data_end ||
	       vni_is_ours(start->geneve.vni);
}

static __always_inline long reply_ipv4(struct __sk_buff *skb)
{
	struct reply_slot *slot = reply_slot();
	struct reply reply = {};
	struct reverse *found;
	struct flow *flow;
	struct iphdr ip;
	long failed;

	if (!slot || read_ipv4(skb, &ip))
		return 0;
	if (ip.ihl < 5)
		return 0;
	flow = &slot->flow;
	if (ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET)) {
		fragment_flow_ipv4(flow, &ip);
		return reply_later_fragment(skb, flow, ip.id, ip.protocol);
	}
	reply.protocol = ip.protocol;
	reply.l4 = sizeof(struct ethhdr) + ip.ihl * 4;
	if (reply.protocol == IPPROTO_ICMP)
		return icmp_reply_ipv4(skb, sizeof(struct ethhdr), reply.l4);
	if (read_reply(skb, &reply))
		return 0;
	if (may_go_to_node(skb, &reply)) {
		failed = filter_egress(skb);
		if (failed)
			return failed;
	}
	slot->key4 = reverse_key4_of(ip.saddr, ip.daddr,
				     two_ports(reply.source_port, reply.destination_port),
				     reply.protocol);
	found = reverse_find4(&slot->key4, &slot->reverse);
	if (!found) {
		*flow = (struct flow){
			.client_port = reply.destination_port,
			.vip_port = reply.source_port,
			.protocol = reply.protocol,
			.family = ADDRESS_FAMILY_IPV4,
		};
		address_set_ipv4(&flow->client, ip.daddr);
		address_set_ipv4(&flow->vip, ip.saddr);
		if (restore_from_digest(flow, reply.tcp_flags))
			found = reverse_find4(&slot->key4, &slot->reverse);
	}
	if (!found) {
		if (service_proxy && is_syn_ack_of_tcp(&reply))
			record_handshake(flow, reply.numbers.sequence);
		return is_endpoint_request(flow) ? DROP_ENDPOINT_SOURCE : 0;
	}
	if (found->validation != VALIDATION_DONE && !validate_reply(&reply, found))
		return 0;
	record_server_state(&reply, found);
	failed = write_source_ipv4(skb, &reply, &ip, &slot->reverse);
	if (!failed && slot->reverse.flags & REVERSE_CLAMP && is_syn_ack(&reply))
		mss_clamp(skb, reply.l4, sizeof(struct iphdr) + sizeof(struct tcphdr));
	if (!failed && ip.frag_off & bpf_htons(IPV4_MORE_FRAGMENTS)) {
		fragment_flow_ipv4(flow, &ip);
		return reply_first_fragment(flow, ip.id, ip.protocol, &slot->reverse.vip);
	}
	return failed;
}

static __always_inline long reply_ipv6(struct __sk_buff *skb)
{
	struct reply_slot *slot = reply_slot();
	struct ipv6_fragment fragment = {};
	struct reply reply = {};
	struct reverse *found;
	struct flow *flow;
	struct ipv6hdr ip;
	long failed;

	if (!slot || read_ipv6(skb, &ip))
		return 0;
	flow = &slot->flow;
	reply.protocol = ip.nexthdr;
	reply.l4 = sizeof(struct ethhdr) + sizeof(ip);
	if (reply.protocol == IPV6_FRAGMENT) {
		if (bpf_skb_load_bytes(skb, reply.l4, &fragment, sizeof(fragment)))
			return 0;
		if (fragment.offset & bpf_htons(IPV6_FRAGMENT_OFFSET)) {
			fragment_flow_ipv6(flow, &ip);
			return reply_later_fragment(skb, flow, fragment.id, 0);
		}
		reply.protocol = fragment.next;
		reply.l4 += sizeof(fragment);
	}
	if (reply.protocol == IPPROTO_ICMPV6)
		return icmp_reply_ipv6(skb, sizeof(struct ethhdr), reply.l4);
	if (is_extension(reply.protocol) || reply.protocol == IPV6_FRAGMENT)
		return filter_egress(skb);
	if (read_reply(skb, &reply))
		return 0;
	if (may_go_to_node(skb, &reply)) {
		failed = filter_egress(skb);
		if (failed)
			return failed;
	}
	address_set_ipv6(&slot->key6.endpoint, &ip.saddr);
	address_set_ipv6(&slot->key6.client, &ip.daddr);
	reverse_key6_ends(&slot->key6, two_ports(reply.source_port, reply.destination_port),
			  reply.protocol);
	found = reverse_find6(&slot->key6, &slot->reverse);
	if (!found) {
		*flow = (struct flow){
			.client_port = reply.destination_port,
			.vip_port = reply.source_port,
			.protocol = reply.protocol,
			.family = ADDRESS_FAMILY_IPV6,
		};
		address_set_ipv6(&flow->client, &ip.daddr);
		address_set_ipv6(&flow->vip, &ip.saddr);
		if (restore_from_digest(flow, reply.tcp_flags))
			found = reverse_find6(&slot->key6, &slot->reverse);
	}
	if (!found) {
		if (service_proxy && is_syn_ack_of_tcp(&reply))
			record_handshake(flow, reply.numbers.sequence);
		return is_endpoint_request(flow) ? DROP_ENDPOINT_SOURCE : 0;
	}
	if (found->validation != VALIDATION_DONE && !validate_reply(&reply, found))
		return 0;
	record_server_state(&reply, found);
	failed = write_source_ipv6(skb, &reply, &slot->key6, &slot->reverse);
	if (!failed && slot->reverse.flags & REVERSE_CLAMP && is_syn_ack(&reply))
		mss_clamp(skb, reply.l4, sizeof(struct ipv6hdr) + sizeof(struct tcphdr));
	if (!failed && fragment.offset & bpf_htons(IPV6_MORE_FRAGMENTS)) {
		fragment_flow_ipv6(flow, &ip);
		return reply_first_fragment(flow, fragment.id, 0, &slot->reverse.vip);
	}
	return failed;
}

/* Parses the reply again, whose source may be the endpoint or the VIP. */
static __always_inline void record_reply_drop(struct __sk_buff *skb, enum drop_reason reason)
{
	struct flow flow = {};
	struct reply reply = { .l4 = sizeof(struct ethhdr) };

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip = {};

		bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip, sizeof(ip));
		flow.family = ADDRESS_FAMILY_IPV4;
		address_set_ipv4(&flow.client, ip.daddr);
		address_set_ipv4(&flow.vip, ip.saddr);
		reply.protocol = ip.protocol;
		reply.l4 += ip.ihl * 4;
	} else {
		struct ipv6hdr ip = {};

		bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip, sizeof(ip));
		flow.family = ADDRESS_FAMILY_IPV6;
		address_set_ipv6(&flow.client, &ip.daddr);
		address_set_ipv6(&flow.vip, &ip.saddr);
		reply.protocol = ip.nexthdr;
		reply.l4 += sizeof(ip);
	}
	flow.protocol = reply.protocol;
	if (!read_reply(skb, &reply)) {
		flow.client_port = reply.destination_port;
		flow.vip_port = reply.source_port;
	}
	record_drop(&flow, skb->len - sizeof(struct ethhdr), skb->ifindex, 0, reason);
}
