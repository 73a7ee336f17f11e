/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "types.h"

/* Bob Jenkins' lookup3 (May 2006, public domain), hashword2: one pass gives two
 * independent 32-bit values. It is the kernel's jhash with both results kept.
 * Every node must compute the same, so the seed is fixed.
 */
#define HASH_SEED 0x4d696c6c /* "Mill" */

static __always_inline __u32 rotate(__u32 value, int bits)
{
	return value << bits | value >> (32 - bits);
}

static __always_inline void hash_mix(__u32 *a, __u32 *b, __u32 *c)
{
	*a -= *c; *a ^= rotate(*c, 4); *c += *b;
	*b -= *a; *b ^= rotate(*a, 6); *a += *c;
	*c -= *b; *c ^= rotate(*b, 8); *b += *a;
	*a -= *c; *a ^= rotate(*c, 16); *c += *b;
	*b -= *a; *b ^= rotate(*a, 19); *a += *c;
	*c -= *b; *c ^= rotate(*b, 4); *b += *a;
}

static __always_inline void hash_final(__u32 *a, __u32 *b, __u32 *c)
{
	*c ^= *b; *c -= rotate(*b, 14);
	*a ^= *c; *a -= rotate(*c, 11);
	*b ^= *a; *b -= rotate(*a, 25);
	*c ^= *b; *c -= rotate(*b, 16);
	*a ^= *c; *a -= rotate(*c, 4);
	*b ^= *a; *b -= rotate(*a, 14);
	*c ^= *b; *c -= rotate(*b, 24);
}

/* Independent hashes of a flow for the node and for the endpoint. */
struct hash_pair {
	__u32 node;
	__u32 endpoint;
};

/* Words are taken as the bytes of the packet loaded by the machine; of the ports the
 * lower half is the client's.
 */
static __always_inline struct hash_pair hash_ipv4(__u32 client, __u32 vip, __u32 ports,
						  __u8 protocol)
{
	struct hash_pair hash;
	__u32 a, b, c;

	a = b = c = 0xdeadbeef + (3 << 2) + HASH_SEED + protocol;
	a += client;
	b += vip;
	c += ports;
	hash_final(&a, &b, &c);
	hash.node = c;
	hash.endpoint = b;
	return hash;
}

static __always_inline struct hash_pair hash_ipv6(const __be32 *client, const __be32 *vip,
						  __u32 ports, __u8 protocol)
{
	struct hash_pair hash;
	__u32 a, b, c;

	a = b = c = 0xdeadbeef + (9 << 2) + HASH_SEED + protocol;
	a += client[0];
	b += client[1];
	c += client[2];
	hash_mix(&a, &b, &c);
	a += client[3];
	b += vip[0];
	c += vip[1];
	hash_mix(&a, &b, &c);
	a += vip[2];
	b += vip[3];
	c += ports;
	hash_final(&a, &b, &c);
	hash.node = c;
	hash.endpoint = b;
	return hash;
}

/* Under session affinity all flows of a client have one hash: its port counts as zero. */
static __always_inline void hash_flow(struct packet *packet, const struct frontend *frontend)
{
	const struct flow *flow = &packet->flow;
	__be16 client_port = frontend->affinity ? 0 : flow->client_port;
	__u32 ports = (__u32)flow->vip_port << 16 | client_port;
	struct hash_pair hash;

	if (flow->family == ADDRESS_FAMILY_IPV4)
		hash = hash_ipv4(flow->client.word[3], flow->vip.word[3], ports, flow->protocol);
	else
		hash = hash_ipv6(flow->client.word, flow->vip.word, ports, flow->protocol);
	packet->node_hash = hash.node;
	packet->endpoint_hash = hash.endpoint;
}
