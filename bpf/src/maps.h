/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "drop_reason.h"
#include "event.h"
#include "transmit_drop_maps.h"
#include "trace.h"
#include "types.h"

/* The loader replaces a max_entries of 1. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct self);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UPLINKS);
	__type(key, __u32);
	__type(value, struct uplink);
} uplinks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VLANS);
	__type(key, struct vlan_key);
	__type(value, __u32);
} vlans SEC(".maps");

/* BPF_F_MMAPABLE page-aligns the array, so that entries do not cross cache lines. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NODES);
	__type(key, __u32);
	__type(value, struct node);
} nodes SEC(".maps");

/* Last heartbeat of the agent (bpf_jiffies64), or 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} hop_lease SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NODE_ADDRESSES);
	__type(key, struct address);
	__type(value, __u32);
} node_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NODES);
	__type(key, __u32);
	__type(value, struct ingress_interfaces);
} node_uplinks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tunnel_policy);
} tunnel_policies SEC(".maps");

/* By key number. A key is written before its first and cleared after its last use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, TUNNEL_KEYS + 1);
	__type(key, __u32);
	__type(value, struct tunnel_key);
} tunnel_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probe_keys);
} probe_secrets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct agent_heartbeats);
} agent_heartbeat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, __u32);
} vips SEC(".maps");

/* Bloom filter of networks (bloom.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VIP_FILTER_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} vip_filter SEC(".maps");

/* Parts of the networks in vip_filter (bloom.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VIP_FILTER_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} vip_parts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend_key4);
	__type(value, struct frontend);
} frontends4 SEC(".maps");

/* By hash of the key (frontend.h): 8-byte keys halve the cost of a lookup. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct frontend6);
} frontends6 SEC(".maps");

/* Clients admitted by source ranges. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range_key4);
	__type(value, __u32);
} source_ranges4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range_key6);
	__type(value, __u32);
} source_ranges6 SEC(".maps");

/* Node tables, indexed as in row.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

/* By frontend id. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct zones);
} zone_tables SEC(".maps");

/* One per ROW_GROUP rows (row.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row_group);
} row_groups SEC(".maps");

/* Of write_rows and read_rows. Batched map updates cost more per entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ROWS);
	__type(key, __u32);
	__type(value, struct row_update);
} row_updates SEC(".maps");

/* Flows that another node than their row's primary owns. Flows of evicted overrides follow their
 * row and chain.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct override_bucket);
} overrides SEC(".maps");

/* Small enough to stay in the CPU caches. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} override_filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fingerprint_secret);
} fingerprint_key SEC(".maps");

/* Endpoint tables, indexed as in row.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} endpoint_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/* Number of endpoints by address and port. Lives as long as the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct endpoint_port);
	__type(value, __u32);
} endpoint_ports SEC(".maps");

/* Flow tables, separated so that a flood evicts only flows of the same kind:
 * - connections: validated TCP (validation.h), so not created by spoofed packets;
 * - datagrams: UDP and SCTP, for which a reply is the only evidence;
 * - half_open: all others, much smaller, one map for both families (half_open.h).
 * The first two have a map per direction. Each kind has an overflow table for VIPs over their quota
 * (quota.h), which has IPv6 keys for both families.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct connection_key4);
	__type(value, struct connection);
} connections4 SEC(".maps"), datagrams4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct connection_key6);
	__type(value, struct connection);
} connections6 SEC(".maps"), datagrams6 SEC(".maps"), overflow_conn SEC(".maps"),
	overflow_data SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct reverse_key4);
	__type(value, struct reverse);
} reverse4 SEC(".maps"), datagrams_rev4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct reverse_key6);
	__type(value, struct reverse);
} reverse6 SEC(".maps"), datagrams_rev6 SEC(".maps"), overflow_conn_rev SEC(".maps"),
	overflow_data_rev SEC(".maps");

/* Two copies and the number of the complete one (established_filter.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} established_filter SEC(".maps");

/* VIP connections of the node's service proxy (service_proxy.h). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow);
	__type(value, __u32);
} proxy_connections SEC(".maps");

/* Acknowledgment number that the client of a proxied connection has to send. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow);
	__type(value, __u32);
} proxy_handshakes SEC(".maps");

/* By frontend id: 1 if new connections no longer belong to the service proxy. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} migrated_frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FILTER_BATCH);
	__type(key, __u32);
	__type(value, struct flow);
} filter_updates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct half_open_bucket);
} half_open_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VIP_REPLY_KINDS *REPLY_SLOTS);
	__type(key, __u32);
	__type(value, struct reply_rate);
} reply_rates SEC(".maps");

/* By VIP, then by source (lookup_limit.h); first packets, then repeated ones. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * MISS_SLOTS);
	__type(key, __u32);
	__type(value, struct miss_rate);
} miss_rates SEC(".maps");

/* By class and protocol. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct miss_rate);
} cpu_miss_rates SEC(".maps");

/* Recent lookup misses (flow_miss.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOW_MISS_BUCKETS);
	__type(key, __u32);
	__type(value, struct flow_miss_bucket);
} flow_misses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTED_DATAGRAMS);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps"), overflow_fragments SEC(".maps");

/* Usage of the VIPs' quotas (quota.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUOTA_SLOTS);
	__type(key, __u32);
	__type(value, struct quotas);
} vip_quotas SEC(".maps");

/* See packet_slot.h. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct packet_slot);
} packet_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reply_slot);
} reply_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_digest_bucket);
} flow_digests SEC(".maps");

/* By frontend id; IPv4-mapped for IPv4. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frontend_key6);
} frontend_keys SEC(".maps");

/* Both families (affinity_table.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct affinity_bucket);
} affinities SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frontend_counter);
} frontend_counts SEC(".maps");

/* Written by drops only. When full, drop_counts still counts. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend_drop);
	__type(value, __u64);
} frontend_drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_REASONS);
	__type(key, enum drop_reason);
	__type(value, struct sampling);
} drop_sampling SEC(".maps");

/* struct drop_sample records for the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SAMPLE_BYTES);
} drop_samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENTS);
	__type(key, enum event);
	__type(value, __u64);
} event_counts SEC(".maps");
