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

/* Words are taken as the bytes of the packet loaded by the machine. Under session
 * affinity all flows of a client have one hash: its port counts as zero.
 */
static __always_inline void hash_flow(struct packet *packet, const struct frontend *frontend)
{
	const struct flow *flow = &packet->flow;
	__be16 client_port = frontend->affinity ? 0 : flow->client_port;
	__u32 ports = (__u32)flow->vip_port << 16 | client_port;
	__u32 a, b, c;

	if (flow->family == ADDRESS_FAMILY_IPV4) {
		a = b = c = 0xdeadbeef + (3 << 2) + HASH_SEED + flow->protocol;
		a += flow->client.word[3];
		b += flow->vip.word[3];
		c += ports;
	} else {
		a = b = c = 0xdeadbeef + (9 << 2) + HASH_SEED + flow->protocol;
		a += flow->client.word[0];
		b += flow->client.word[1];
		c += flow->client.word[2];
		hash_mix(&a, &b, &c);
		a += flow->client.word[3];
		b += flow->vip.word[0];
		c += flow->vip.word[1];
		hash_mix(&a, &b, &c);
		a += flow->vip.word[2];
		b += flow->vip.word[3];
		c += ports;
	}
	hash_final(&a, &b, &c);
	packet->node_hash = c;
	packet->endpoint_hash = b;
}
