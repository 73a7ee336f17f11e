//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* L2 mode: ARP requests (RFC 826) and neighbour solicitations (RFC 4861) for VIPs. The agent loads
 * two programs per interface.
 *
 * The tcx program respond replies to common packets. A reply costs about as much as a request, so no
 * rate limit and no table of hosts are needed.
 *
 * The socket filter filter_requests passes other packets, or all without tcx, to the agent. It drops
 * requests for other addresses and applies a rate limit per host, so that neither can fill the
 * socket's buffer.
 */

char _license[] SEC("license") = "GPL";

/* Bytes copied to the agent; no request is longer. */
#define SNAPLEN 512

/* RFC 826: offsets for Ethernet and IPv4. */
#define ARP_OPERATION 6
#define ARP_REQUEST 1
#define ARP_TARGET 24

/* RFC 4861 section 4.3. */
#define ICMPV6_SOLICITATION 135
#define SOLICITATION_TARGET (sizeof(struct ipv6hdr) + 8)

/* Requests per second and host. A gateway may request many VIPs at once. */
#define REQUESTS_PER_HOST 1000
#define SECOND 1000000000ull
/* LRU: evicted hosts start a new count. */
#define HOSTS 4096

/* VIPs that this node announces. Not preallocated. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct in6_addr);
	__type(value, __u8);
} announced_vips SEC(".maps");

struct sender {
	__u8 mac[ETH_ALEN];
	__u8 unused[2];
};

struct host_rate {
	__u64 since;
	__u64 requested;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, HOSTS);
	__type(key, struct sender);
	__type(value, struct host_rate);
} host_rates SEC(".maps");

/* Number of requests above the rate limit. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} limited_requests SEC(".maps");

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

/* A race at the start of a second admits a few more requests. */
static __always_inline int is_within_rate(const struct __sk_buff *skb)
{
	struct host_rate *rate, first = { .since = bpf_ktime_get_ns(), .requested = 1 };
	struct sender sender = {};
	__u32 zero = 0;
	__u64 *limited;

	if (bpf_skb_load_bytes_relative(skb, offsetof(struct ethhdr, h_source), sender.mac,
					sizeof(sender.mac), BPF_HDR_START_MAC))
		return 0;
	rate = bpf_map_lookup_elem(&host_rates, &sender);
	if (!rate) {
		bpf_map_update_elem(&host_rates, &sender, &first, BPF_ANY);
		return 1;
	}
	if (first.since - rate->since >= SECOND)
		*rate = first;
	else if (__sync_fetch_and_add(&rate->requested, 1) >= REQUESTS_PER_HOST) {
		limited = bpf_map_lookup_elem(&limited_requests, &zero);
		if (limited)
			__sync_fetch_and_add(limited, 1);
		return 0;
	}
	return 1;
}

volatile const __u8 own_mac[ETH_ALEN];

/* Nanoseconds; the same as AGENT_NANOSECONDS. */
#define AGENT_TIMEOUT_NS (4 * SECOND)

/* The agent's last heartbeat (bpf_ktime_get_ns). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} agent_heartbeat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} replies_sent SEC(".maps");

struct arp_frame {
	struct ethhdr eth;
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_length;
	__u8 protocol_length;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__be32 sender;
	__u8 target_mac[ETH_ALEN];
	__be32 target;
} __attribute__((packed));

/* Solicitation or advertisement with a single link-layer address option. */
struct neighbour_frame {
	struct ethhdr eth;
	struct ipv6hdr ip;
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 flags;
	struct in6_addr target;
	__u8 option;
	__u8 option_length;
	__u8 mac[ETH_ALEN];
} __attribute__((packed));

#define NEIGHBOUR_LENGTH (sizeof(struct neighbour_frame) - offsetof(struct neighbour_frame, type))

#define ARP_REPLY 2
#define ICMPV6_ADVERTISEMENT 136
#define SOURCE_ADDRESS 1
#define TARGET_ADDRESS 2
/* RFC 4861 section 4.4: the Solicited and Override flags. */
#define SOLICITED_OVERRIDE 0x60000000
#define HOP_LIMIT 255

static __always_inline int agent_is_alive(void)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&agent_heartbeat, &zero);

	return last && bpf_ktime_get_ns() - *last < AGENT_TIMEOUT_NS;
}

/* Rejects multicast and zero addresses. */
static __always_inline int is_one_host(const __u8 *mac)
{
	return !(mac[0] & 1) && (mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]);
}

static __always_inline int is_multicast_or_none(const struct in6_addr *address)
{
	return address->in6_u.u6_addr8[0] == 0xff ||
	       !(address->in6_u.u6_addr32[0] | address->in6_u.u6_addr32[1] |
		 address->in6_u.u6_addr32[2] | address->in6_u.u6_addr32[3]);
}

static __always_inline int is_same(const struct in6_addr *a, const struct in6_addr *b)
{
	return a->in6_u.u6_addr32[0] == b->in6_u.u6_addr32[0] &&
	       a->in6_u.u6_addr32[1] == b->in6_u.u6_addr32[1] &&
	       a->in6_u.u6_addr32[2] == b->in6_u.u6_addr32[2] &&
	       a->in6_u.u6_addr32[3] == b->in6_u.u6_addr32[3];
}

static __always_inline void set_own(__u8 *mac)
{
	for (int i = 0; i < ETH_ALEN; i++)
		mac[i] = own_mac[i];
}

/* Returns nonzero if the request is left to the sockets. */
static __always_inline int reply_to_arp(struct __sk_buff *skb)
{
	struct in6_addr target = {};
	struct arp_frame frame;
	__be32 requested;

	if (bpf_skb_load_bytes(skb, 0, &frame, sizeof(frame)) ||
	    frame.operation != bpf_htons(ARP_REQUEST) || frame.hardware != bpf_htons(1) ||
	    frame.protocol != bpf_htons(ETH_P_IP) || frame.hardware_length != ETH_ALEN ||
	    frame.protocol_length != sizeof(frame.target) || frame.sender == frame.target ||
	    !is_one_host(frame.sender_mac) || !agent_is_alive())
		return -1;
	target.in6_u.u6_addr32[2] = bpf_htonl(0xffff);
	target.in6_u.u6_addr32[3] = frame.target;
	if (!bpf_map_lookup_elem(&announced_vips, &target))
		return -1;
	requested = frame.target;
	frame.operation = bpf_htons(ARP_REPLY);
	__builtin_memcpy(frame.target_mac, frame.sender_mac, ETH_ALEN);
	frame.target = frame.sender;
	frame.sender = requested;
	set_own(frame.sender_mac);
	__builtin_memcpy(frame.eth.h_dest, frame.target_mac, ETH_ALEN);
	set_own(frame.eth.h_source);
	return bpf_skb_store_bytes(skb, 0, &frame, sizeof(frame), 0);
}

/* Checksum with the pseudo-header (RFC 8200 section 8.1); 0 for a valid message. */
static __always_inline __sum16 checksum_of(struct neighbour_frame *frame)
{
	__be32 pseudo[2] = { bpf_htonl(NEIGHBOUR_LENGTH), bpf_htonl(IPPROTO_ICMPV6) };
	/* Aligned copies. */
	struct in6_addr addresses[2] = { frame->ip.saddr, frame->ip.daddr };
	__be32 message[NEIGHBOUR_LENGTH / sizeof(__be32)];
	__s64 sum;

	__builtin_memcpy(message, &frame->type, sizeof(message));
	sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), 0);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)addresses, sizeof(addresses), sum);
	sum = bpf_csum_diff(NULL, 0, message, sizeof(message), sum);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline int is_plain_solicitation(struct neighbour_frame *frame)
{
	return frame->ip.version == 6 && frame->ip.nexthdr == IPPROTO_ICMPV6 &&
	       frame->ip.hop_limit == HOP_LIMIT &&
	       frame->ip.payload_len == bpf_htons(NEIGHBOUR_LENGTH) &&
	       frame->type == ICMPV6_SOLICITATION && !frame->code &&
	       frame->option == SOURCE_ADDRESS && frame->option_length == 1 &&
	       is_one_host(frame->mac);
}

/* Requests without a link-layer or source address are left to the sockets. */
static __always_inline int reply_to_solicitation(struct __sk_buff *skb)
{
	struct in6_addr target, requester;
	struct neighbour_frame frame;

	if (bpf_skb_load_bytes(skb, 0, &frame, sizeof(frame)) || !is_plain_solicitation(&frame) ||
	    !agent_is_alive())
		return -1;
	target = frame.target;
	requester = frame.ip.saddr;
	if (is_multicast_or_none(&requester) || is_same(&requester, &target) ||
	    !bpf_map_lookup_elem(&announced_vips, &target) || checksum_of(&frame))
		return -1;
	__builtin_memcpy(frame.eth.h_dest, frame.mac, ETH_ALEN);
	set_own(frame.eth.h_source);
	frame.ip.priority = 0;
	frame.ip.flow_lbl[0] = frame.ip.flow_lbl[1] = frame.ip.flow_lbl[2] = 0;
	frame.ip.saddr = target;
	frame.ip.daddr = requester;
	frame.type = ICMPV6_ADVERTISEMENT;
	frame.checksum = 0;
	frame.flags = bpf_htonl(SOLICITED_OVERRIDE);
	frame.option = TARGET_ADDRESS;
	set_own(frame.mac);
	frame.checksum = checksum_of(&frame);
	return bpf_skb_store_bytes(skb, 0, &frame, sizeof(frame), 0);
}

/* Replies on the interface of arrival. TC_ACT_UNSPEC is TCX_NEXT. */
SEC("tcx/ingress")
int respond(struct __sk_buff *skb)
{
	__u32 zero = 0;
	__u64 *count;
	int unhandled;

	/* An offloaded tag belongs to another interface, or is a priority tag. */
	if (skb->pkt_type > PACKET_MULTICAST || skb->vlan_present)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		unhandled = reply_to_arp(skb);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		unhandled = reply_to_solicitation(skb);
	else
		return TC_ACT_UNSPEC;
	if (unhandled)
		return TC_ACT_UNSPEC;
	count = bpf_map_lookup_elem(&replies_sent, &zero);
	if (count)
		(*count)++;
	return bpf_redirect(skb->ifindex, 0);
}

/* Returns the bytes to copy. Interfaces may be promiscuous. */
SEC("socket")
int filter_requests(struct __sk_buff *skb)
{
	struct in6_addr target = {};
	int is_request;

	if (skb->pkt_type > PACKET_MULTICAST)
		return 0;
	is_request = skb->protocol == bpf_htons(ETH_P_ARP) ? read_arp(skb, &target) :
							     read_solicitation(skb, &target);
	if (!is_request || !bpf_map_lookup_elem(&announced_vips, &target) || !is_within_rate(skb))
		return 0;
	return SNAPLEN;
}
