/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "types.h"

/* Multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast", 2014):
 * the sum of the words, each times a 64-bit constant. The finalizer of MurmurHash3 (Appleby,
 * public domain) follows, so that all bits of the result depend on all words.
 *
 * Its multiplications do not wait for each other, as the steps of Jenkins' hashes do. The
 * constants are the first bits of square roots of primes, as in FIPS 180-4 section 5.3. They
 * are fixed: every node must compute the same hash.
 */
#define HASH_CLIENT                                                                                \
	{ 0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1 }
#define HASH_VIP                                                                                   \
	{ 0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179 }
#define HASH_PORTS 0xcbbb9d5dc1059ed8
#define HASH_PROTOCOL 0x629a292a367cd507
#define HASH_FRONTEND 0x9159015a3070dd17

static __always_inline __u64 hash_address(const __be32 *words, const __u64 constants[4])
{
	return words[0] * constants[0] + words[1] * constants[1] + words[2] * constants[2] +
	       words[3] * constants[3];
}

static __always_inline __u64 hash_final(__u64 sum)
{
	sum = (sum ^ sum >> 33) * 0xff51afd7ed558ccd;
	sum = (sum ^ sum >> 33) * 0xc4ceb9fe1a85ec53;
	return sum ^ sum >> 33;
}

/* Independent hashes of a flow for the node and for the endpoint. */
struct hash_pair {
	__u32 node;
	__u32 endpoint;
};

static __always_inline struct hash_pair hash_pair(__u64 sum)
{
	__u64 hash = hash_final(sum);
	struct hash_pair pair = { .node = hash >> 32, .endpoint = hash };

	return pair;
}

/* Words are loaded from the packet as they are. The lower half of ports is the client's. An
 * IPv4 address is the last word of four.
 */
static __always_inline struct hash_pair hash_ipv4(__u32 client, __u32 vip, __u32 ports,
						  __u8 protocol)
{
	const __u64 clients[] = HASH_CLIENT, vips[] = HASH_VIP;

	return hash_pair(client * clients[3] + vip * vips[3] + ports * HASH_PORTS +
			 protocol * HASH_PROTOCOL);
}

static __always_inline __u64 hash_vip(const __be32 *vip)
{
	const __u64 vips[] = HASH_VIP;

	return hash_address(vip, vips);
}

/* hashed is the hash_vip of the VIP. */
static __always_inline __u64 hash_sum(const __be32 *client, __u64 hashed, __u32 ports,
				      __u8 protocol)
{
	const __u64 clients[] = HASH_CLIENT;

	return hash_address(client, clients) + hashed + ports * HASH_PORTS +
	       protocol * HASH_PROTOCOL;
}

static __always_inline struct hash_pair hash_ipv6(const __be32 *client, __u64 hashed, __u32 ports,
						  __u8 protocol)
{
	return hash_pair(hash_sum(client, hashed, ports, protocol));
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
		hash = hash_ipv6(flow->client.word, hash_vip(flow->vip.word), ports,
				 flow->protocol);
	packet->node_hash = hash.node;
	packet->endpoint_hash = hash.endpoint;
}
