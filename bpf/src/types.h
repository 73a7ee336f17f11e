/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "consts.h"

/* An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d; network byte order. */
struct address {
	__be32 word[4];
};

enum self_flag {
	/* XDP_TX must not be used. The veth driver does not deliver such frames unless the other
	 * end runs an XDP program, too.
	 */
	SELF_NO_TRANSMIT = 1,
	/* A card takes VLAN tags off and cannot be told not to. An answer sent by XDP would leave
	 * without its tag.
	 */
	SELF_TAGS_BESIDE = 2,
	/* An aggregate may be among the source ranges. Without it none is asked for. */
	SELF_AGGREGATES = 4,
	/* Times the number of the key that this node tags with; zero means none. */
	SELF_KEY = 0x100,
};

/* This node. A zero IPv4 or IPv6 address means none. */
struct self {
	__u16 id;
	/* Bytes that encapsulation adds to a packet, for the MSS. */
	__u16 overhead;
	__u32 flags;
	__be32 ipv4;
	struct address ipv6;
	/* Below ZONES; zero means none. */
	__u32 zone;
	/* The addresses of the uplinks. Frames for other stations, which a promiscuous or
	 * flooded port sees, are not ours. Six bytes each, as the low bytes of a little-endian
	 * load; the rest zero. Unused places are zero and come last.
	 */
	__u64 uplink_mac[UPLINK_MACS];
};

enum node_flag {
	/* It does not answer: nothing is sent to it that may go elsewhere. Its own packets count. */
	NODE_DOWN = 1,
};

/* A node of the cluster. A zero address means none of that family. After the IPv4 address
 * comes the next hop that the agent prepared; a zero interface means none. One cache line:
 * a packet over IPv4 needs only its first half.
 */
struct node {
	__be32 ipv4;
	__u32 ifindex;
	/* The Ethernet addresses as they stand in a frame. */
	__u8 destination[6];
	__u8 source[6];
	/* The 802.1Q tag to send with, or zero. */
	__u16 vlan;
	/* The path MTU: the longest IP packet that gets to the node. */
	__u16 mtu;
	__u32 pad;
	struct address ipv6;
	/* Below ZONES; zero means none. */
	__u32 zone;
	/* enum node_flag */
	__u32 flags;
	__u32 reserved[2];
};

/* The interfaces, as XDP names them, by which the packets of a node come in. Unused places are
 * zero and come last. All zero means any.
 */
struct ingress_interfaces {
	__u32 ifindex[NODE_UPLINKS];
};

enum trust_flag {
	/* The programs on all uplinks mark what they hand to the kernel: nothing else leaves with
	 * our VNI.
	 */
	TRUST_EGRESS = 1,
	/* Packets of nodes without a tag, or with one of a key that is not accepted, are dropped. */
	TRUST_TAGS = 2,
	/* Shifted left by the number of an accepted key. */
	TRUST_KEY = 4,
	/* Those bits. */
	TRUST_KEYS = 0x78,
};

/* Of a key for two words of a packet: two for each half of the tag. */
struct tunnel_key_pair {
	__u64 word[4];
};

/* A key of the tags of packets between nodes: see tunnel_tag.h. */
struct tunnel_key {
	__u64 start[2];
	struct tunnel_key_pair pair[TAG_PAIRS];
	/* What the agent made the words of. Programs do not read it. */
	__u8 secret[TUNNEL_SECRET];
};

/* How packets between nodes are told from forged ones. */
struct trust {
	/* enum trust_flag */
	__u32 flags;
	/* The mark of what this node's programs hand to the kernel. Random; zero means none yet. */
	__u32 mark;
};

enum probe_kind {
	PROBE_REQUEST = 1,
	PROBE_ANSWER = 2,
	/* The node takes packets, but its agent does not work. */
	PROBE_ANSWER_ALONE = 3,
};

/* The agent's beats, as bpf_ktime_get_ns; zero means never. See agent_beat.h. */
struct agent_beats {
	/* The last one. */
	__u64 beat;
	/* The first one after the last silence. */
	__u64 returned;
};

/* Whether a node takes encapsulated packets: see probe.h. Ids of nodes. */
struct probe {
	/* enum probe_kind */
	__be32 kind;
	__be16 from;
	__be16 to;
	/* Both as the processor has them: nobody calculates with the nonce. */
	__u64 nonce;
	__u64 tag;
} __attribute__((packed));

/* The keys that probes are proved by: as many as tunnel keys, and one of zeros until all nodes
 * have keys.
 */
struct probe_keys {
	__u64 key[PROBE_KEYS][2];
	__u32 count;
	__u32 pad;
};

/* The node tables of a frontend by the zone of the ingress node; zero means none. All zero
 * where the frontend has one table for all nodes.
 */
struct zones {
	__u32 table[ZONES];
};

/* A row of a node table: the path of its packets (path.h), but in the place of the ingress
 * node flags of the row, and upper bits of ids (row.h).
 */
struct row {
	__u64 path;
};

/* Beside a group of rows: what a marked row needs. Ticks; zero means never. */
struct group_mark {
	/* When the primary of one of them last changed. */
	__u32 moved;
	/* When an exception of one of them was last learned, or found by a sweep. */
	__u32 excepted;
};

/* A row that the agent writes or reads. */
struct row_update {
	__u32 row;
	__u32 pad;
	__u64 path;
};

/* Flows of which another node than their row's primary holds the state: see
 * exception_table.h. A bucket is two cache lines.
 */
struct exception {
	__u64 print;
	__u64 about;
};

struct exception_bucket {
	struct exception slot[EXCEPTION_SLOTS];
};

/* What prints are made with: random numbers of this node. */
struct exception_secret {
	__u64 word[EXCEPTION_SECRET];
};

/* The request of sweep_exceptions and of rest_rows, and what they found. */
struct exception_sweep {
	/* From which word of the filter, or row, on, and how many. */
	__u32 first;
	__u32 count;
	/* Ticks at the start of the sweep; zero begins one. */
	__u32 since;
	/* Exceptions that stay, or rows that are marked because of some. */
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
	/* The Service has no endpoint anywhere: clients are refused. */
	FRONTEND_REFUSES = 2,
};

struct frontend {
	__u32 id;
	__u32 table;
	__u32 endpoints;
	__u32 flags;
	/* Seconds for which a client keeps its endpoint, or zero. */
	__u32 affinity;
	/* The set of source ranges that is admitted; zero admits every source. */
	__u32 ranges;
};

/* An IPv6 frontend is found by a hash of its key, and then checked by the key. */
struct frontend6 {
	struct frontend frontend;
	struct frontend_key6 key;
};

/* Keys of the sets of prefixes: longest prefix match over the set and the address, so
 * that all sets share a map. A prefix of n bits has the length SOURCE_SET_BITS + n.
 */
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

/* An endpoint; a zero port means that the id is unused. The tag is a digest of address and
 * port. A connection keeps it beside the id, which may be given to another endpoint.
 */
struct endpoint {
	struct address address;
	__be16 port;
	__u16 pad;
	__u32 tag;
};

/* Key of the index of this node's endpoints. */
struct endpoint_port {
	struct address address;
	__be16 port;
	__u16 pad;
};

/* Key of a flow as the client sends it. */
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
	/* It counts once the endpoint has acknowledged it: see flow_timeout.h. */
	CLIENT_FIN = 1,
	/* A reset that the endpoint must have taken: see stage2.h. */
	CLIENT_RST = 2,
	/* The entry is in a second table: see quota.h. */
	IN_OVERFLOW = 4,
	/* It is no TCP. Only half-open flows have it: their entries have no protocol. */
	OF_DATAGRAMS = 8,
	/* The end of the flow was told: see tell_primary. */
	END_TOLD = 16,
};

struct connection {
	__u32 endpoint;
	__u32 tag;
	/* Ticks, renewed every REFRESH_SECONDS of activity. */
	__u32 seen;
	__u32 flags;
};

/* Key of a flow as the endpoint sends it. */
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
	/* The client's packets may be encapsulated: keep its segments small. */
	REVERSE_CLAMP = 1,
	SERVER_FIN = 2,
	SERVER_RST = 4,
};

/* What proves that the client's address is not spoofed: see proof.h. */
enum proof {
	/* A SYN, or a datagram. */
	PROOF_ASKED,
	/* The same, after a flow of the same client address and port that is over. */
	PROOF_RENEWED,
	/* A packet of a connection that this node did not know. */
	PROOF_CLAIMED,
	/* A SYN-ACK went to the client. */
	PROOF_OFFERED,
	/* Packets went in both directions, or the endpoint answered a datagram. */
	PROOF_GIVEN,
	/* A SYN came while another flow of the same client address and port had an offer. Last, for
	 * pinned maps have these numbers.
	 */
	PROOF_CONTESTED,
};

struct reverse {
	struct address vip;
	__be16 vip_port;
	/* enum proof */
	__u8 proof;
	__u8 pad;
	__u32 flags;
	/* TCP, in host byte order. Until proof is given: what the client acknowledged
	 * (PROOF_CLAIMED), or the endpoint's initial sequence number (PROOF_OFFERED,
	 * PROOF_CONTESTED). After that, with CLIENT_FIN: what the endpoint acknowledges if it
	 * takes the FIN.
	 */
	__u32 sequence;
	/* TCP, in host byte order: what the endpoint acknowledged last. With PROOF_CLAIMED the
	 * client's sequence number.
	 */
	__u32 acknowledged;
};

/* A flow without proof, in both directions: see half_open.h. A cache line. */
struct half_open {
	/* Prints of the flow as the client sends it, and as the endpoint does. */
	__u64 asks;
	__u64 answers;
	struct connection connection;
	struct reverse reverse;
};

/* The marks and the clock are a cache line, too. */
struct half_open_bucket {
	__u64 mark[HALF_OPEN_SLOTS];
	/* How many marks were written: the bucket's own time. */
	__u64 clock;
	struct half_open slot[HALF_OPEN_SLOTS];
};

/* What remains of an evicted flow: see evicted_flow.h. A zero id means an empty slot. */
struct evicted_flow {
	__u32 fingerprint;
	__u32 id;
};

struct evicted_flow_bucket {
	struct evicted_flow slot[EVICTED_SLOTS];
};

/* Key of a client's endpoint under session affinity. */
struct affinity_key {
	struct address client;
	__u32 endpoint_table;
};

struct affinity {
	__u32 endpoint;
	__u32 tag;
	/* Ticks of the last new flow. */
	__u32 seen;
	/* A row of the endpoint table that was the endpoint's. */
	__u32 row;
};

/* A client's record: see affinity_table.h. A zero endpoint table means an
 * empty slot.
 */
struct affinity_record {
	struct affinity_key key;
	/* A hash of the VIP that noted it. */
	__u32 owner;
	/* Seconds. */
	__u32 lasts;
	__u32 pad;
	struct affinity affinity;
};

/* Whole cache lines. */
struct affinity_bucket {
	struct affinity_record record[AFFINITY_SLOTS];
};

struct frontend_counter {
	__u64 packets;
	__u64 bytes;
	__u64 connections;
};

/* Drops of one frontend for one reason. */
struct frontend_drop {
	__u32 frontend;
	__u32 reason;
};

/* How many samples of a reason a CPU has taken in the current second. */
struct sampling {
	/* Tick at which the second began. */
	__u32 since;
	__u32 taken;
	/* Not sampled because SAMPLES_PER_SECOND had been taken. */
	__u64 skipped;
	/* Not sampled because the ring buffer was full. */
	__u64 lost;
};

enum uplink_flag {
	/* The driver takes frames that were redirected from another interface. */
	UPLINK_TAKES_FRAMES = 1,
};

/* An interface by which frames of the uplinks come in or leave. */
struct uplink {
	__u32 flags;
	/* The bond that it is a member of, or zero. */
	__u32 master;
};

/* The VLAN tags of an uplink on an interface, as XDP names it. */
struct vlan_key {
	__u32 ifindex;
	/* Outermost first, as in packet_slot, but with the VLAN's id alone. Zero means none. */
	__be32 tag[VLAN_TAGS];
};

/* XDP metadata in front of a frame that ingress passes to the kernel: the interface by which
 * it has to leave. Zero means the one by which the stack sees it come in.
 */
struct handover {
	__u32 magic;
	__u32 ifindex;
};

#define HANDOVER_MAGIC 0x4d4c5248 /* "MLRH" */

/* A flow, in the client's direction. */
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

/* A dropped packet, in drop_samples. */
struct drop_sample {
	/* Nanoseconds of CLOCK_MONOTONIC. */
	__u64 time;
	/* As far as it was read: ports are zero where there was no such header. */
	struct flow flow;
	/* Bytes of the IP packet with its header, as the header says. */
	__u32 length;
	/* The interface by which it came in; of a reply, the one by which it would have left. */
	__u32 ifindex;
	/* Id of the frontend; zero means none. */
	__u32 frontend;
	__u32 reason;
};

/* The nodes that a packet may go to: see path.h. */
struct path {
	__u64 word;
	__u32 high;
	__u32 pad;
};

/* What a packet is. */
enum packet_kind {
	/* With the client's TCP, UDP or SCTP header. */
	PACKET_TRANSPORT,
	/* An ICMP error about a packet that the VIP sent. Its flow is the client's flow, which
	 * that packet belongs to.
	 */
	PACKET_ICMP_ERROR,
	/* An ICMP echo request to the VIP. */
	PACKET_ECHO,
	/* A fragment other than the first; the flow is that of the first. */
	PACKET_LATER_FRAGMENT,
};

/* A packet in the ingress program. Offsets count from the start of the frame. */
struct packet {
	struct flow flow;
	struct path path;
	__u8 tcp_flags;
	/* Traffic class: DSCP and ECN. */
	__u8 tos;
	/* The node that encapsulated it; zero if a router sent it. */
	__u16 sender;
	__u16 l3;
	__u16 l4;
	/* Bytes of the IP packet with its header. */
	__u32 length;
	/* Independent hashes of the flow for the node and for the endpoint. */
	__u32 node_hash;
	__u32 endpoint_hash;
	/* Id of the frontend, once it is found. */
	__u32 frontend;
	/* Id of the endpoint, once stage 2 has found or chosen one. */
	__u32 endpoint;
	/* enum packet_kind */
	__u16 kind;
	/* The frame is now the VIP's own answer. */
	__u8 answered;
	/* How many zones after the ingress node's its path's zone is: see zone.h. */
	__u8 zone_steps;
	/* The node that gets it asks no other, whatever its path. */
	__u8 asks_nobody;
	/* Of a packet that was too big: the longest one that fits. */
	__u32 mtu;
};

/* What a CPU has of the packet that it works at. */
struct packet_slot {
	struct packet packet;
	/* Its frontend, once it is found. */
	struct frontend frontend;
	/* The 802.1Q and 802.1ad tags that the slow path took off the frame, outermost first,
	 * each with the EtherType in front.
	 */
	__u32 tags;
	__be32 tag[VLAN_TAGS];
	/* The uplink whose tags these are; zero where there are none. */
	__u32 uplink;
	struct vlan_key vlan;
};

/* What a CPU has of the reply that it works at. */
struct reply_slot {
	/* Of its reverse entry. */
	union {
		struct reverse_key4 key4;
		struct reverse_key6 key6;
	};
	/* A copy: the entry may change meanwhile. */
	struct reverse reverse;
	/* For evicted_flow.h and fragment.h, in the form that each takes. */
	struct flow flow;
};

/* A datagram whose first fragment was seen. */
struct fragment_key {
	struct address from;
	struct address to;
	__be32 id;
	__u8 protocol;
	__u8 pad[3];
};

/* What later fragments lack. */
struct fragment {
	struct address vip;
	__be16 client_port;
	__be16 vip_port;
	__u32 protocol;
	__u32 seen;
};

/* How many packets of unknown flows came back in the current second. */
struct unknown {
	__u32 since;
	__u32 count;
};

/* A flow that was unknown lately: see unknown_flow.h. */
struct unknown_flow {
	/* Of the flow's print, and enum unknown_state; zero means that the slot is free. */
	__u32 about;
	/* Ticks of the last packet that changed the state. */
	__u32 since;
};

/* A cache line. */
struct unknown_flow_bucket {
	/* The slot after that of the newest flow. */
	__u32 next;
	__u32 pad;
	struct unknown_flow slot[UNKNOWN_FLOW_SLOTS];
};

/* The tables of which each VIP has a quota: see quota.h. */
enum quota_kind {
	QUOTA_HALF_OPEN,
	QUOTA_CONNECTIONS,
	QUOTA_DATAGRAMS,
	QUOTA_FRAGMENTS,
	QUOTA_KINDS,
};

/* The new entries of a VIP in the current second. Ticks; in the last two zero means never. */
struct quota {
	__u32 since;
	__u32 count;
	/* When they last were more than the quota. */
	__u32 exceeded;
	/* When an entry of the second table was last written or used. */
	__u32 used;
};

struct quotas {
	struct quota kind[QUOTA_KINDS];
};

/* How much was answered in the current second. */
struct answers {
	__u32 since;
	__u32 given;
};
