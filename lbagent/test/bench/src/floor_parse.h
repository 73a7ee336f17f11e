/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ROWS 4096
#define ROW_SHIFT 20
#define CHAIN_LENGTH 3

struct key4 {
	__be32 vip;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct key6 {
	__be32 vip[4];
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct frontend {
	__u32 id;
	__u32 table;
};

struct row {
	__u16 primary;
	__u16 chain[CHAIN_LENGTH];
};

/* Addresses and the prepared next hop of a node. */
struct node {
	__be32 ipv4;
	__u8 destination[ETH_ALEN];
	__u8 source[ETH_ALEN];
	__be32 ipv6[4];
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* Entries are set by the loader to what the data plane has, where it has the like. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct key4);
	__type(value, struct frontend);
} frontends4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct key6);
	__type(value, struct frontend);
} frontends6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

struct flow4 {
	__be32 client;
	__be32 vip;
	__be32 ports;
	__u32 protocol;
};

struct flow6 {
	__be32 client[4];
	__be32 vip[4];
	__be32 ports;
	__u32 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow4);
	__type(value, __u32);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow6);
	__type(value, __u32);
} flows6 SEC(".maps");

/* The first 4 bytes of TCP and UDP. */
struct ports {
	__be16 source;
	__be16 destination;
};

/* Ethernet, IPv4 without options, TCP or UDP; zero where the frame is that. */
static __always_inline int parse4(struct xdp_md *ctx, struct iphdr **ip, struct ports **ports)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	*ip = (void *)(eth + 1);
	*ports = (void *)(*ip + 1);
	if ((void *)*ports + sizeof(struct udphdr) > (void *)(long)ctx->data_end)
		return -1;
	if (*(__u8 *)*ip != 0x45 || (*ip)->frag_off & bpf_htons(0x3fff))
		return -1;
	return (*ip)->protocol != IPPROTO_TCP && (*ip)->protocol != IPPROTO_UDP;
}

static __always_inline int parse6(struct xdp_md *ctx, struct ipv6hdr **ip, struct ports **ports)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	*ip = (void *)(eth + 1);
	*ports = (void *)(*ip + 1);
	if ((void *)*ports + sizeof(struct udphdr) > (void *)(long)ctx->data_end)
		return -1;
	if ((*ip)->version != 6)
		return -1;
	return (*ip)->nexthdr != IPPROTO_TCP && (*ip)->nexthdr != IPPROTO_UDP;
}

static __always_inline __be16 ethertype(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) > (void *)(long)ctx->data_end ? 0 : eth->h_proto;
}

static __always_inline struct frontend *lookup4(const struct iphdr *ip, const struct ports *ports)
{
	struct key4 key = { .vip = ip->daddr, .port = ports->destination, .protocol = ip->protocol };

	return bpf_map_lookup_elem(&frontends4, &key);
}

static __always_inline struct frontend *lookup6(const struct ipv6hdr *ip, const struct ports *ports)
{
	struct key6 key = { .port = ports->destination, .protocol = ip->nexthdr };

	__builtin_memcpy(key.vip, &ip->daddr, sizeof(key.vip));
	return bpf_map_lookup_elem(&frontends6, &key);
}

static __always_inline struct frontend *lookup(struct xdp_md *ctx)
{
	struct ports *ports;

	if (ethertype(ctx) == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		return parse4(ctx, &ip, &ports) ? NULL : lookup4(ip, ports);
	}
	if (ethertype(ctx) == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip;

		return parse6(ctx, &ip, &ports) ? NULL : lookup6(ip, ports);
	}
	return NULL;
}
