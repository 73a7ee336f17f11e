/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

/* Shapes of the maps. The agent does not compile where they differ from those of the package
 * that computes the contents.
 */
enum shape {
	ROWS = 4096,
	/* Of the smallest node table. */
	LEAST_ROWS = 128,
	CHAIN_LENGTH = 3,
	/* Rows of a node table that share a mark. */
	ROW_GROUP = 8,
	ENDPOINT_ROWS = 512,
	/* Ids of 14 bits. */
	NODES = 16384,
	/* An address may belong to the old and the new id of a node for a moment. */
	NODE_ADDRESSES = 4 * NODES,
	UPLINKS = 64,
	EVICTED_SLOTS = 8,
	EXCEPTION_SLOTS = 8,
	HALF_OPEN_SLOTS = 7,
	/* A power of two. */
	AFFINITY_SLOTS = 8,
	UNKNOWN_FLOW_SLOTS = 7,
	/* Buckets of a word of the filter. */
	EXCEPTION_FILTERED = 4,
	/* Words of 64 bits. */
	EXCEPTION_SECRET = 12,
	UPLINK_MACS = 8,
	/* Keys of tags, from 1 on. */
	TUNNEL_KEYS = 4,
	/* Of a key: two words start the sums, four are for each pair of words of a packet. */
	TAG_PAIRS = 11,
	/* Bytes. */
	TUNNEL_SECRET = 32,
	/* 64 bits each. */
	VIP_FILTER_WORDS = 1024,
	VLAN_TAGS = 2,
	/* Uplinks that are VLANs, times the interfaces that their frames may come in by. */
	VLANS = 1024,
	/* Interfaces by which the packets of a node come in. */
	NODE_UPLINKS = 8,
	PROBE_KEYS = 4,
	/* Zones, with that of nodes without a zone. A power of two. */
	ZONES = 8,
	/* Flows that one run of note_connections takes. */
	NOTED_AT_ONCE = 4096,
};

/* Ids that are given to nothing else. They are no int, which would make none of their enum one. */
enum reserved_id {
	/* The set of the pools' prefixes. */
	SOURCE_SET_POOLS = 0xfffffffe,
	/* The set of the prefixes that routers are told in place of single VIPs. */
	SOURCE_SET_AGGREGATES = 0xfffffffd,
	/* In the rows of an endpoint table whose new flows are refused. No endpoint has this id. */
	ENDPOINT_REFUSED = 0xffffffff,
};

/* A row is picked by the upper bits of a 32-bit hash: of a node table with ROWS of them. */
#define ROW_SHIFT 20
/* The parts of what names a node table (row.h). */
#define TABLE_BLOCK 0xffff
#define TABLE_PART 16
#define TABLE_SIZE 24
#define ENDPOINT_ROW_SHIFT 23

/* How long prepared next hops are used after the agent's last heartbeat. */
#define HOP_SECONDS 30

/* How many endpoints a new flow tries where the client's address and port are taken at one, and
 * in how many rows it looks for the next.
 */
#define ENDPOINT_ATTEMPTS 8
#define ENDPOINT_ROW_ATTEMPTS 64

/* The VIP's own answers. Each kind has its own rate limit. */
enum answer_kind {
	ANSWER_ECHO,
	ANSWER_REFUSAL,
	ANSWER_TOO_BIG,
	ANSWER_KINDS,
};

/* Answers per second to one source, of one VIP, and what all VIPs together may add to that. */
#define ANSWERS_PER_SOURCE 100
#define ANSWERS_PER_VIP 1000
#define ANSWERS_IN_ALL 10000

/* Slots of second_chance_limit.h. */
#define UNKNOWN_VIPS 2048
#define UNKNOWN_SOURCES 4096
#define UNKNOWN_SLOTS (UNKNOWN_VIPS + UNKNOWN_SOURCES)

/* Buckets of unknown_flow.h: 8 MiB in all. A power of two. */
#define UNKNOWN_FLOW_BUCKETS (1 << 17)

/* Fragmented datagrams at the same time. */
#define FRAGMENTED_DATAGRAMS 16384

/* Slots of quota.h: the first for all VIPs, then by VIP. */
#define QUOTA_SLOTS (1 + 8192)

/* Slots of answer_limit.h: the first for all VIPs, then by VIP, then by source. */
#define ANSWER_VIPS 4096
#define ANSWER_SOURCES 4096
#define ANSWER_SLOTS (1 + ANSWER_VIPS + ANSWER_SOURCES)

#define ADDRESS_FAMILY_IPV4 2
#define ADDRESS_FAMILY_IPV6 10

#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV4_MAX_HEADER 60

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* How often an active flow renews its time stamp, and its reverse entry if that was lost. */
#define REFRESH_SECONDS 5

/* How many dropped packets each CPU samples per second and reason. So a flood of drops costs
 * little more than counting it.
 */
#define SAMPLES_PER_SECOND 16

/* Bytes of unread samples; a multiple of every page size. */
#define SAMPLE_BYTES (256 * 1024)

/* Kernel ticks per second, set by the loader: bpf_jiffies64 is a plain load where
 * bpf_ktime_get_ns reads the hardware clock.
 */
volatile const __u32 ticks_per_second = 250;
