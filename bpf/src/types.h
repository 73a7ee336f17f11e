/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "consts.h"

/* IPv6 or IPv4-mapped address in network byte order. */
struct address {
	__be32 word[4];
};

enum self_flag {
	/* XDP_TX does not work, as on veth without an XDP program on the peer. */
	SELF_NO_TRANSMIT = 1,
	/* The NIC strips VLAN tags and cannot be configured otherwise. XDP_TX would lose the tag.
	 */
	SELF_VLAN_STRIPPED = 2,
	/* Source ranges may include an aggregate. */
	SELF_AGGREGATES = 4,
	/* Multiplied by the key number, or 0. */
	SELF_KEY = 0x100,
};

/* This node. An absent address is 0. */
struct self {
	__u16 id;
	/* Encapsulation overhead in bytes, for the MSS. */
	__u16 overhead;
	__u32 flags;
	__be32 ipv4;
	struct address ipv6;
	/* Below ZONES; 0 means none. */
	__u32 zone;
	/* MAC addresses of the uplinks, in the lower six bytes. Unused entries come last. */
	__u64 uplink_mac[UPLINK_MACS];
};

enum node_flag {
	/* Does not reply to probes. Its packets are still accepted. */
	NODE_DOWN = 1,
};

/* A node and its prepared next hop, in one cache line; ifindex 0: no next hop. */
struct node {
	__be32 ipv4;
	__u32 ifindex;
	/* MAC addresses as in a frame. */
	__u8 destination[6];
	__u8 source[6];
	/* 802.1Q tag, or 0. */
	__u16 vlan;
	/* Path MTU to the node. */
	__u16 mtu;
	__u32 pad;
	struct address ipv6;
	/* Below ZONES; 0 means none. */
	__u32 zone;
	/* enum node_flag */
	__u32 flags;
	__u32 reserved[2];
};

/* ctx->ingress_ifindex of a node's packets. Unused entries are 0 and come last; all 0 means any. */
struct ingress_interfaces {
	__u32 ifindex[NODE_UPLINKS];
};

enum tunnel_policy_flag {
	/* The programs on all uplinks mark packets for the kernel; others with our VNI are dropped.
	 */
	POLICY_EGRESS = 1,
	/* Packets from nodes without a tag of an accepted key are dropped. */
	POLICY_TAGS = 2,
	/* Shifted left by the number of an accepted key. */
	POLICY_KEY = 4,
	POLICY_KEYS = 0x78,
};

struct tunnel_key_pair {
	__u64 word[4];
};

/* Key of tags: see tunnel_tag.h. */
struct tunnel_key {
	__u64 start[2];
	struct tunnel_key_pair pair[TAG_PAIRS];
	/* Source of the words, for the agent only. */
	__u8 secret[TUNNEL_SECRET];
};

struct tunnel_policy {
	/* enum tunnel_policy_flag */
	__u32 flags;
	/* Random mark of packets for the kernel, or 0. */
	__u32 mark;
};

enum probe_kind {
	PROBE_REQUEST = 1,
	PROBE_ANSWER = 2,
	/* The node accepts packets, but its agent is down. */
	PROBE_ANSWER_ALONE = 3,
};

/* Heartbeats (bpf_ktime_get_ns); 0 means never. See agent_heartbeat.h. */
struct agent_heartbeats {
	__u64 beat;
	/* The first one after the last outage. */
	__u64 returned;
};

/* Checks whether a node accepts encapsulated packets: see probe.h. from and to are node ids. */
struct probe {
	/* enum probe_kind */
	__be32 kind;
	__be16 from;
	__be16 to;
	/* Host byte order; the nonce is opaque. */
	__u64 nonce;
	__u64 tag;
} __attribute__((packed));

/* Keys of probes: the tunnel keys, and a zero key until all nodes have keys. */
struct probe_keys {
	__u64 key[PROBE_KEYS][2];
	__u32 count;
	__u32 pad;
};

/* By zone of the ingress node, or 0. All 0 if the frontend has one table. */
struct zones {
	__u32 table[ZONES];
};

/* A path (path.h) with flags and upper id bits in place of the ingress node (row.h). */
struct row {
	__u64 path;
};

/* Ticks; 0 means never. */
struct row_group {
	/* Last change of a primary in the group. */
	__u32 moved;
	/* Last override added or found by a sweep in the group. */
	__u32 overridden;
};

struct row_update {
	__u32 row;
	__u32 pad;
	__u64 path;
};

/* See override_table.h. A bucket is two cache lines. */
struct override {
	__u64 fingerprint;
	__u64 value;
};

struct override_bucket {
	struct override slot[OVERRIDE_SLOTS];
};

/* Random key of this node's fingerprints. */
struct fingerprint_secret {
	__u64 word[FINGERPRINT_SECRET];
};

/* Request and result of sweep_overrides and clear_row_flags. */
struct override_sweep {
	__u32 first;
	__u32 count;
	/* Ticks at the start of the sweep; 0 starts one. */
	__u32 since;
	/* Number of remaining overrides or flagged rows. */
	__u32 left;
};

struct frontend_key4 {
	__be32 vip;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct frontend_key6 {
	struct address vip;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

enum frontend_flag {
	FRONTEND_LOCAL = 1,
	/* The Service has no endpoint at all: clients are refused. */
	FRONTEND_REFUSES = 2,
};

struct frontend {
	__u32 id;
	__u32 table;
	__u32 endpoints;
	__u32 flags;
	/* Session affinity timeout in seconds, or 0. */
	__u32 affinity;
	/* Set of admitted source ranges; 0 admits all. */
	__u32 ranges;
	/* Ticks of the last switch of session affinity, or from policy Local to rows; 0 means
	 * never.
	 */
	__u32 switched;
};

/* Found by a hash of the key, which is then compared. */
struct frontend6 {
	struct frontend frontend;
	struct frontend_key6 key;
};

/* LPM keys. A prefix of n bits has the length SOURCE_SET_BITS + n. */
#define SOURCE_SET_BITS 32

struct source_range_key4 {
	__u32 prefixlen;
	__u32 set;
	__be32 address;
};

struct source_range_key6 {
	__u32 prefixlen;
	__u32 set;
	struct address address;
};

/* Port 0: unused. The tag, a digest of address and port, detects reuse of the id. */
struct endpoint {
	struct address address;
	__be16 port;
	__u16 pad;
	__u32 tag;
};

struct endpoint_port {
	struct address address;
	__be16 port;
	__u16 pad;
};

struct connection_key4 {
	__be32 client;
	__be32 vip;
	__be16 client_port;
	__be16 vip_port;
	__u8 protocol;
	__u8 pad[3];
};

struct connection_key6 {
	struct address client;
	struct address vip;
	__be16 client_port;
	__be16 vip_port;
	__u8 protocol;
	__u8 pad[3];
};

enum connection_flag {
	/* Counts once acknowledged by the endpoint: see flow_timeout.h. */
	CLIENT_FIN = 1,
	/* A reset that the endpoint must have accepted: see stage2.h. */
	CLIENT_RST = 2,
	/* The entry is in an overflow table: see quota.h. */
	IN_OVERFLOW = 4,
	/* Not TCP. Half-open flows only, whose entries have no protocol. */
	OF_DATAGRAMS = 8,
	/* The primary has been sent the end of the flow: see redirect_primary. */
	END_SENT = 16,
};

struct connection {
	__u32 endpoint;
	__u32 tag;
	/* Ticks, updated every REFRESH_SECONDS of activity. */
	__u32 seen;
	__u32 flags;
};

struct reverse_key4 {
	__be32 endpoint;
	__be32 client;
	__be16 endpoint_port;
	__be16 client_port;
	__u8 protocol;
	__u8 pad[3];
};

struct reverse_key6 {
	struct address endpoint;
	struct address client;
	__be16 endpoint_port;
	__be16 client_port;
	__u8 protocol;
	__u8 pad[3];
};

enum reverse_flag {
	/* Clamp the MSS, because the client's packets may be encapsulated. */
	REVERSE_CLAMP = 1,
	SERVER_FIN = 2,
	SERVER_RST = 4,
};

/* State of the address validation of a flow: see validation.h. */
enum validation {
	VALIDATION_SYN,
	/* As VALIDATION_SYN, after an earlier flow of the same client address and port. */
	VALIDATION_SYN_REUSED,
	/* A mid-stream packet of an unknown connection. */
	VALIDATION_MIDSTREAM,
	/* A SYN-ACK was sent to the client. */
	VALIDATION_SYN_ACK,
	VALIDATION_DONE,
	/* As VALIDATION_SYN_ACK, to another flow. Last, because pinned maps contain these numbers.
	 */
	VALIDATION_CONTESTED,
};

struct reverse {
	struct address vip;
	__be16 vip_port;
	/* enum validation */
	__u8 validation;
	__u8 pad;
	__u32 flags;
	/* TCP, host byte order. VALIDATION_MIDSTREAM: the client's acknowledgment.
	 * VALIDATION_SYN_ACK, VALIDATION_CONTESTED: the endpoint's initial sequence number.
	 * VALIDATION_DONE and CLIENT_FIN: the endpoint's acknowledgment of the FIN.
	 */
	__u32 sequence;
	/* TCP, host byte order: the endpoint's last acknowledgment; see VALIDATION_MIDSTREAM. */
	__u32 acknowledged;
};

/* Flow that is not validated, both directions: see half_open.h. One cache line. */
struct half_open {
	/* Fingerprints of the forward and the reverse direction. */
	__u64 forward_fingerprint;
	__u64 reverse_fingerprint;
	struct connection connection;
	struct reverse reverse;
};

/* The marks and the clock are one cache line. */
struct half_open_bucket {
	__u64 mark[HALF_OPEN_SLOTS];
	/* Number of writes to marks: the bucket's clock. */
	__u64 clock;
	struct half_open slot[HALF_OPEN_SLOTS];
};

/* Digest of an evicted flow: see flow_digest.h. Id 0 is an empty slot. */
struct flow_digest {
	__u32 fingerprint;
	__u32 id;
};

struct flow_digest_bucket {
	struct flow_digest slot[DIGEST_SLOTS];
};

struct affinity_key {
	struct address client;
	__u32 endpoint_table;
};

struct affinity {
	__u32 endpoint;
	__u32 tag;
	__u32 seen;
	/* A recent row of the endpoint in the endpoint table. */
	__u32 row;
};

/* See affinity_table.h. Endpoint table 0 is an empty slot. */
struct affinity_record {
	struct affinity_key key;
	/* Hash of the VIP that created the record. */
	__u32 owner;
	__u32 timeout;
	__u32 pad;
	struct affinity affinity;
};

struct affinity_bucket {
	struct affinity_record record[AFFINITY_SLOTS];
};

struct frontend_counter {
	__u64 packets;
	__u64 bytes;
	__u64 connections;
};

struct frontend_drop {
	__u32 frontend;
	__u32 reason;
};

/* Samples per CPU and reason in the current second. */
struct sampling {
	__u32 since;
	__u32 taken;
	/* Not sampled because of SAMPLES_PER_SECOND. */
	__u64 skipped;
	/* Not sampled because the ring buffer was full. */
	__u64 lost;
};

enum uplink_flag {
	/* The driver accepts redirected frames. */
	UPLINK_ACCEPTS_REDIRECTS = 1,
};

/* Ingress or egress interface of the uplinks. */
struct uplink {
	__u32 flags;
	/* ifindex of the bond, or 0. */
	__u32 master;
};

/* VLAN tags of an uplink; ifindex is ctx->ingress_ifindex. */
struct vlan_key {
	__u32 ifindex;
	/* Outermost first, VLAN ids only, or 0. */
	__be32 tag[VLAN_TAGS];
};

/* XDP metadata of a frame that is passed to the kernel: its egress interface; 0 is that of arrival.
 */
struct kernel_redirect {
	__u32 magic;
	__u32 ifindex;
};

#define KERNEL_REDIRECT_MAGIC 0x4d4c5248 /* "MLRH" */

struct flow {
	struct address client;
	struct address vip;
	__be16 client_port;
	__be16 vip_port;
	__u8 protocol;
	/* ADDRESS_FAMILY_IPV4 or ADDRESS_FAMILY_IPV6 */
	__u8 family;
	__u16 pad;
};

struct drop_sample {
	/* CLOCK_MONOTONIC in nanoseconds. */
	__u64 time;
	/* As far as parsed; ports are 0 without such a header. */
	struct flow flow;
	/* Length of the IP packet according to its header. */
	__u32 length;
	/* Ingress interface; for a reply the egress interface. */
	__u32 ifindex;
	/* 0 means none. */
	__u32 frontend;
	__u32 reason;
};

struct path {
	__u64 word;
	__u32 high;
	__u32 pad;
};

enum packet_kind {
	PACKET_TRANSPORT,
	/* ICMP error. The flow is that of the quoted packet in the client's direction. */
	PACKET_ICMP_ERROR,
	PACKET_ECHO,
	/* Fragment other than the first; the flow is that of the first. */
	PACKET_LATER_FRAGMENT,
};

/* Packet in the ingress program. Offsets are from the start of the frame. */
struct packet {
	struct flow flow;
	struct path path;
	__u8 tcp_flags;
	/* Traffic class: DSCP and ECN. */
	__u8 tos;
	/* Node that encapsulated the packet; 0 for a router. */
	__u16 sender;
	__u16 l3;
	__u16 l4;
	/* Length of the IP packet in bytes. */
	__u32 length;
	__u32 node_hash;
	__u32 endpoint_hash;
	__u32 frontend;
	__u32 endpoint;
	/* enum packet_kind */
	__u16 kind;
	/* The frame is a reply on behalf of the VIP. */
	__u8 is_vip_reply;
	/* Number of zones after that of the ingress node: see zone.h. */
	__u8 zone_steps;
	/* The receiver must not forward it to another node, whatever the path. */
	__u8 no_forward;
	/* MTU for the ICMP error about a packet that is too big. */
	__u32 mtu;
};

struct packet_slot {
	struct packet packet;
	struct frontend frontend;
	/* Tags that the slow path removed, outermost first, with the EtherType in front. */
	__u32 tags;
	__be32 tag[VLAN_TAGS];
	/* Uplink of the tags, or 0. */
	__u32 uplink;
	struct vlan_key vlan;
};

struct reply_slot {
	union {
		struct reverse_key4 key4;
		struct reverse_key6 key6;
	};
	/* A copy, because the entry may change. */
	struct reverse reverse;
	/* In the form required by flow_digest.h or fragment.h. */
	struct flow flow;
};

struct fragment_key {
	struct address from;
	struct address to;
	__be32 id;
	__u8 protocol;
	__u8 pad[3];
};

struct fragment {
	struct address vip;
	__be16 client_port;
	__be16 vip_port;
	__u32 protocol;
	__u32 seen;
};

struct miss_rate {
	__u32 since;
	__u32 count;
};

/* Recent lookup miss: see flow_miss.h. */
struct flow_miss {
	/* Bits of the fingerprint and enum miss_state; 0 is a free slot. */
	__u32 tag_state;
	/* Ticks of the last state change. */
	__u32 since;
};

/* One cache line. */
struct flow_miss_bucket {
	/* Next slot to write. */
	__u32 next;
	__u32 pad;
	struct flow_miss slot[FLOW_MISS_SLOTS];
};

/* See quota.h. Pinned maps contain these numbers. */
enum quota_kind {
	QUOTA_HALF_OPEN,
	QUOTA_CONNECTIONS,
	QUOTA_DATAGRAMS,
	QUOTA_FRAGMENTS,
	QUOTA_KINDS,
};

/* New entries of a VIP in the current second. Ticks; 0 means never in the last two fields. */
struct quota {
	__u32 since;
	__u32 count;
	/* When the quota was last exceeded. */
	__u32 exceeded;
	/* When an entry of the overflow table was last written or used. */
	__u32 used;
};

struct quotas {
	struct quota kind[QUOTA_KINDS];
};

struct reply_rate {
	__u32 since;
	__u32 count;
};
