//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The filter of the packet sockets by which the agent answers for VIPs on a link: ARP requests (RFC
 * 826) and neighbour solicitations (RFC 4861). Questions for other addresses never reach a socket,
 * and neither does what one host asks too often. So neither can take the room of others.
 */

char _license[] SEC("license") = "GPL";

/* The start of a packet that the agent reads. No question is longer. */
#define LONGEST 512

/* RFC 826: the operation, and the target of a packet with addresses of Ethernet and IPv4. */
#define ARP_OPERATION 6
#define ARP_REQUEST 1
#define ARP_TARGET 24

/* RFC 4861 section 4.3: the target is behind the header of ICMPv6 and four more bytes. */
#define ICMPV6_SOLICITATION 135
#define SOLICITATION_TARGET (sizeof(struct ipv6hdr) + 8)

/* Questions that one host has in a second. A gateway asks for many VIPs at once. */
#define QUESTIONS_PER_SENDER 1000
#define SECOND 1000000000ull
/* Beyond that the longest unused ones are forgotten, and begin again. */
#define SENDERS 4096

/* The VIPs that this node answers for. Memory is taken for those that are there. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct in6_addr);
	__type(value, __u8);
} asked_vips SEC(".maps");

struct sender {
	__u8 mac[ETH_ALEN];
	__u8 unused[2];
};

/* What a host asked since a time. */
struct sender_share {
	__u64 since;
	__u64 asked;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SENDERS);
	__type(key, struct sender);
	__type(value, struct sender_share);
} senders SEC(".maps");

/* How many questions were beyond the share of their sender. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} refused_questions SEC(".maps");

static __always_inline int read_arp(const struct __sk_buff *skb, struct in6_addr *target)
{
	__be16 operation;

	if (bpf_skb_load_bytes(skb, ARP_OPERATION, &operation, sizeof(operation)) ||
	    operation != bpf_htons(ARP_REQUEST))
		return 0;
	target->in6_u.u6_addr32[2] = bpf_htonl(0xffff);
	return !bpf_skb_load_bytes(skb, ARP_TARGET, &target->in6_u.u6_addr32[3], sizeof(__be32));
}

static __always_inline int read_solicitation(const struct __sk_buff *skb, struct in6_addr *target)
{
	__u8 next, type;

	return !bpf_skb_load_bytes(skb, offsetof(struct ipv6hdr, nexthdr), &next, sizeof(next)) &&
	       next == IPPROTO_ICMPV6 &&
	       !bpf_skb_load_bytes(skb, sizeof(struct ipv6hdr), &type, sizeof(type)) &&
	       type == ICMPV6_SOLICITATION &&
	       !bpf_skb_load_bytes(skb, SOLICITATION_TARGET, target, sizeof(*target));
}

/* Counts a question. Two processors may begin a second at once: then some more pass. */
static __always_inline int sender_may_ask(const struct __sk_buff *skb)
{
	struct sender_share *share, first = { .since = bpf_ktime_get_ns(), .asked = 1 };
	struct sender sender = {};
	__u32 zero = 0;
	__u64 *refused;

	if (bpf_skb_load_bytes_relative(skb, offsetof(struct ethhdr, h_source), sender.mac,
					sizeof(sender.mac), BPF_HDR_START_MAC))
		return 0;
	share = bpf_map_lookup_elem(&senders, &sender);
	if (!share) {
		bpf_map_update_elem(&senders, &sender, &first, BPF_ANY);
		return 1;
	}
	if (first.since - share->since >= SECOND)
		*share = first;
	else if (__sync_fetch_and_add(&share->asked, 1) >= QUESTIONS_PER_SENDER) {
		refused = bpf_map_lookup_elem(&refused_questions, &zero);
		if (refused)
			__sync_fetch_and_add(refused, 1);
		return 0;
	}
	return 1;
}

/* Returns how many bytes of a packet the socket gets. The packet begins behind its Ethernet header.
 * Frames for other hosts do not count: an interface may be promiscuous.
 */
SEC("socket")
int question(struct __sk_buff *skb)
{
	struct in6_addr target = {};
	int asks;

	if (skb->pkt_type > PACKET_MULTICAST)
		return 0;
	asks = skb->protocol == bpf_htons(ETH_P_ARP) ? read_arp(skb, &target) :
							read_solicitation(skb, &target);
	if (!asks || !bpf_map_lookup_elem(&asked_vips, &target) || !sender_may_ask(skb))
		return 0;
	return LONGEST;
}
