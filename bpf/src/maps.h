/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "drop_reason.h"
#include "event.h"
#include "loss_maps.h"
#include "trace.h"
#include "types.h"

/* Sizes of 1 are set by the loader. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct self);
} settings SEC(".maps");

/* By interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UPLINKS);
	__type(key, __u32);
	__type(value, struct uplink);
} uplinks SEC(".maps");

/* The VLANs that are uplinks, with the index of each. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VLANS);
	__type(key, struct vlan_key);
	__type(value, __u32);
} vlans SEC(".maps");

/* Arrays that can be mapped begin on a page, so that entries lie within cache lines. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NODES);
	__type(key, __u32);
	__type(value, struct node);
} nodes SEC(".maps");

/* The agent's last heartbeat, as bpf_jiffies64; zero means never. The agent keeps the prepared
 * next hops right while it lives.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} heartbeat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NODE_ADDRESSES);
	__type(key, struct address);
	__type(value, __u32);
} node_addresses SEC(".maps");

/* By the id of a node. */
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
	__type(value, struct trust);
} tunnel_trust SEC(".maps");

/* By number. A key is written before it is used, and wiped after. */
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
	__type(value, struct agent_beats);
} agent_beat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, __u32);
} vips SEC(".maps");

/* A bit is set where an address may be ours (bloom.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VIP_FILTER_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} vip_filter SEC(".maps");

/* Beside each word, in which part of those networks (bloom.h). */
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

/* By a hash of the key (frontend.h): a lookup by 8 bytes takes the kernel half the time. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct frontend6);
} frontends6 SEC(".maps");

/* Clients that frontends with source ranges admit. */
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

/* Rows of node tables, indexed as in row.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

/* By the id of the frontend. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct zones);
} zone_tables SEC(".maps");

/* Beside ROW_GROUP rows each (row.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct group_mark);
} group_marks SEC(".maps");

/* The request of write_rows, and what read_rows finds. It can be mapped: a node has many rows, and
 * the kernel takes longer for each entry of a batch than the programs do for a row.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ROWS);
	__type(key, __u32);
	__type(value, struct row_update);
} row_updates SEC(".maps");

/* Flows that their row's primary does not hold. A flow that is evicted goes by its row and
 * chain again.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct exception_bucket);
} exceptions SEC(".maps");

/* Small, so that it stays in the caches. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} exception_filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct exception_secret);
} exception_key SEC(".maps");

/* Rows of endpoint tables, indexed as in row.h. */
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

/* How many endpoints have an address and port. It lasts as long as the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct endpoint_port);
	__type(value, __u32);
} endpoint_ports SEC(".maps");

/* Each family has three tables of flows. A flood of one kind evicts only flows of its own kind:
 * connections are TCP with proof (proof.h): spoofed packets make none;
 * datagrams are UDP and SCTP, where an answer is the only proof;
 * half_open, much smaller, are all others: one map of all families (half_open.h).
 * The first two have a table for each direction. All have a second table, for VIPs beyond their quota
 * (quota.h); those of the first two are of both families.
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

/* Two copies, and a word that says which of them is whole (established_filter.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} established_filter SEC(".maps");

/* Connections to VIPs that are the node's service proxy's (service_proxy.h). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow);
	__type(value, __u32);
} proxied SEC(".maps");

/* Of connections that the service proxy has answered and the client has not: the number that the
 * client is to acknowledge, in host byte order.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow);
	__type(value, __u32);
} proxy_offers SEC(".maps");

/* 1 for the frontends, by their ids, of which new connections are not the service proxy's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} taken_frontends SEC(".maps");

/* The request of note_connections. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NOTED_AT_ONCE);
	__type(key, __u32);
	__type(value, struct flow);
} noted_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct half_open_bucket);
} half_open_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ANSWER_KINDS *ANSWER_SLOTS);
	__type(key, __u32);
	__type(value, struct answers);
} answer_counts SEC(".maps");

/* By VIP, then by source (second_chance_limit.h): of first packets, then of repeats. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * UNKNOWN_SLOTS);
	__type(key, __u32);
	__type(value, struct unknown);
} unknowns SEC(".maps");

/* By class and protocol. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct unknown);
} cpu_unknowns SEC(".maps");

/* Flows that were unknown lately (unknown_flow.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNKNOWN_FLOW_BUCKETS);
	__type(key, __u32);
	__type(value, struct unknown_flow_bucket);
} unknown_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTED_DATAGRAMS);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps"), overflow_fragments SEC(".maps");

/* What VIPs make of their shares (quota.h). */
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
	__type(value, struct evicted_flow_bucket);
} evicted_flows SEC(".maps");

/* Keys of frontends by id, IPv4 as ::ffff:a.b.c.d. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frontend_key6);
} frontend_keys SEC(".maps");

/* Of both families (affinity_table.h). */
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

/* Written only by drops. Where it is full, drop_counts still counts. */
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

/* Of struct drop_sample, for the agent. */
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
