/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

/* Dimensions of the maps, compared with the Go package that computes their contents. */
enum shape {
	ROWS = 4096,
	/* Rows of the smallest node table. */
	MIN_ROWS = 128,
	CHAIN_LENGTH = 3,
	/* Rows of a node table that share timestamps (row.h). */
	ROW_GROUP = 8,
	ENDPOINT_ROWS = 512,
	/* Node ids have 14 bits. */
	NODES = 16384,
	/* During an id change, an address may belong to the old and the new id of a node. */
	NODE_ADDRESSES = 4 * NODES,
	UPLINKS = 64,
	DIGEST_SLOTS = 8,
	OVERRIDE_SLOTS = 8,
	HALF_OPEN_SLOTS = 7,
	/* Power of two. */
	AFFINITY_SLOTS = 8,
	FLOW_MISS_SLOTS = 7,
	/* Buckets per word of the filter. */
	OVERRIDE_FILTERED = 4,
	/* 64-bit words. */
	FINGERPRINT_SECRET = 12,
	UPLINK_MACS = 8,
	/* Tag keys, numbered from 1. */
	TUNNEL_KEYS = 4,
	/* Pairs of key words: one initializes the sums, the others cover the packet. */
	TAG_PAIRS = 11,
	/* Bytes. */
	TUNNEL_SECRET = 32,
	/* 64-bit words. */
	VIP_FILTER_WORDS = 1024,
	VLAN_TAGS = 2,
	/* Number of VLAN uplinks times their lower interfaces. */
	VLANS = 1024,
	/* Ingress interfaces of a node's packets. */
	NODE_UPLINKS = 8,
	PROBE_KEYS = 4,
	/* Including that of nodes without a zone. Power of two. */
	ZONES = 8,
	FILTER_BATCH = 4096,
};

/* They exceed int, which makes the enum unsigned. */
enum reserved_id {
	/* Prefixes of all pools. */
	SOURCE_SET_POOLS = 0xfffffffe,
	/* Aggregates: prefixes that are announced to routers instead of single VIPs. */
	SOURCE_SET_AGGREGATES = 0xfffffffd,
	/* Id in rows of an endpoint table whose new flows are refused. */
	ENDPOINT_REFUSED = 0xffffffff,
};

/* Value of packet.zone_steps in the row that a frontend without zones had before it was switched.
 */
#define STEP_SWITCHED (ZONES - 1)

#define ROW_SHIFT 20
/* Fields of a node table's id (row.h). */
#define TABLE_BLOCK 0xffff
#define TABLE_PART 16
#define TABLE_SIZE 24
#define ENDPOINT_ROW_SHIFT 23

/* Maximum age of the agent's heartbeat, in seconds, for prepared next hops to be used. */
#define HOP_SECONDS 30

/* Endpoints tried on port conflicts, and rows searched for the next one. */
#define ENDPOINT_ATTEMPTS 8
#define ENDPOINT_ROW_ATTEMPTS 64

enum vip_reply_kind {
	VIP_REPLY_ECHO,
	VIP_REPLY_REJECT,
	VIP_REPLY_TOO_BIG,
	VIP_REPLY_KINDS,
};

/* Replies per second: per source, per VIP, and shared by all VIPs in addition. */
#define REPLIES_PER_SOURCE 100
#define REPLIES_PER_VIP 1000
#define REPLIES_TOTAL 10000

/* Slots of lookup_limit.h. */
#define MISS_VIPS 2048
#define MISS_SOURCES 4096
#define MISS_SLOTS (MISS_VIPS + MISS_SOURCES)

/* Buckets of flow_miss.h, 8 MiB in total. Power of two. */
#define FLOW_MISS_BUCKETS (1 << 17)

/* Datagrams under reassembly tracking at a time. */
#define FRAGMENTED_DATAGRAMS 16384

/* Slots of quota.h: one for all VIPs, the others by hash of the VIP. */
#define QUOTA_SLOTS (1 + 8192)

/* Slots of vip_reply_limit.h: one for all VIPs, then by VIP, then by source. */
#define REPLY_VIPS 4096
#define REPLY_SOURCES 4096
#define REPLY_SLOTS (1 + REPLY_VIPS + REPLY_SOURCES)

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

/* Seconds between timestamp updates of an active flow and repairs of its reverse entry. */
#define REFRESH_SECONDS 5

/* Drop samples per second, CPU and reason, to bound the cost of floods. */
#define SAMPLES_PER_SECOND 16

/* Bytes; a multiple of every page size. */
#define SAMPLE_BYTES (256 * 1024)

/* CONFIG_HZ, set by the loader. bpf_jiffies64() is a plain load, unlike bpf_ktime_get_ns(). */
volatile const __u32 ticks_per_second = 250;
