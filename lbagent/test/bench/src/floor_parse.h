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

struct frontend {
	__u32 id;
	__u32 table;
};

/* An IPv6 frontend is found by a hash of its key. last is port and protocol. */
struct frontend6 {
	struct frontend frontend;
	__be32 vip[4];
	__u32 last;
};

/* The path that goes into the option, ready but for the order of its bytes. */
struct row {
	__u64 path;
};

/* The primary of a path. */
#define PRIMARY 40
#define NODE_MASK 0xfff

/* Addresses and the prepared next hop of a node: destination and source of the frame. */
struct node {
	__be32 ipv4;
	__u32 stations[3];
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
	__type(key, __u64);
	__type(value, struct frontend);
} frontends4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct frontend6);
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

/* Keys are stored at once: the lookup, which loads 8 bytes, would wait for parts. */
static __always_inline struct frontend *lookup4(const struct iphdr *ip, const struct ports *ports)
{
	__u64 key = (__u64)(ports->destination | (__u32)ip->protocol << 16) << 32 | ip->daddr;

	return bpf_map_lookup_elem(&frontends4, &key);
}

/* Of a VIP's words. key6 of floors.go computes the same. */
static __always_inline __u64 vip_sum(const __be32 *vip)
{
	return vip[0] * 0x510e527fade682d1 + vip[1] * 0x9b05688c2b3e6c1f +
	       vip[2] * 0x1f83d9abfb41bd6b + vip[3] * 0x5be0cd19137e2179;
}

static __always_inline struct frontend *lookup6(const struct ipv6hdr *ip, const struct ports *ports,
						__u64 sum)
{
	const __be32 *vip = ip->daddr.in6_u.u6_addr32;
	__u32 last = ports->destination | (__u32)ip->nexthdr << 16;
	__u64 key = sum + last * 0x9159015a3070dd17;
	struct frontend6 *found = bpf_map_lookup_elem(&frontends6, &key);

	if (!found || found->last != last || found->vip[0] != vip[0] || found->vip[1] != vip[1] ||
	    found->vip[2] != vip[2] || found->vip[3] != vip[3])
		return NULL;
	return &found->frontend;
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

		if (parse6(ctx, &ip, &ports))
			return NULL;
		return lookup6(ip, ports, vip_sum(ip->daddr.in6_u.u6_addr32));
	}
	return NULL;
}
