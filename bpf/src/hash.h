/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "consts.h"
#include "types.h"

/* Multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast", 2014), the
 * sum of the words times 64-bit constants, followed by the finalizer of MurmurHash3 (Appleby,
 * public domain). Unlike Jenkins' hashes, its multiplications are independent of each other.
 *
 * The constants are the fractional parts of square roots of primes (FIPS 180-4 section 5.3), or
 * derived from the installation's seed (package flowhash). All nodes must compute the same hash.
 * Without a seed, flows of one row can be computed by anyone; an addend alone would not change
 * that.
 */
volatile const __u64 client_multipliers[4] = { 0x6a09e667f3bcc908, 0xbb67ae8584caa73b,
					       0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1 };
volatile const __u64 vip_multipliers[4] = { 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
					    0x1f83d9abfb41bd6b, 0x5be0cd19137e2179 };
volatile const __u64 ports_multiplier = 0xcbbb9d5dc1059ed8;
volatile const __u64 protocol_multiplier = 0x629a292a367cd507;
/* For the port and protocol of an IPv6 frontend. */
volatile const __u64 frontend_multiplier = 0x9159015a3070dd17;
volatile const __u64 hash_addend;

/* The barrier prevents loading all constants before the first multiplication, which spills them. */
static __always_inline __u64 hash_add(__u64 sum, __u64 word, const volatile __u64 *multiplier)
{
	sum += word * *multiplier;
	asm volatile("" : "+r"(sum));
	return sum;
}

static __always_inline __u64 hash_address(__u64 sum, const __be32 *words,
					  const volatile __u64 *multipliers)
{
	sum = hash_add(sum, words[0], &multipliers[0]);
	sum = hash_add(sum, words[1], &multipliers[1]);
	sum = hash_add(sum, words[2], &multipliers[2]);
	return hash_add(sum, words[3], &multipliers[3]);
}

static __always_inline __u64 hash_rest(__u64 sum, __u32 ports, __u8 protocol)
{
	return hash_add(hash_add(sum, ports, &ports_multiplier), protocol, &protocol_multiplier);
}

static __always_inline __u64 hash_final(__u64 sum)
{
	sum = (sum ^ sum >> 33) * 0xff51afd7ed558ccd;
	sum = (sum ^ sum >> 33) * 0xc4ceb9fe1a85ec53;
	return sum ^ sum >> 33;
}

/* Scales a hash to a number of slots. The seed keeps collisions unpredictable. */
static __always_inline __u32 hash_slot(__u64 sum, __u32 slots)
{
	return (hash_final(sum) >> 32) * slots >> 32;
}

/* Independent hashes for node and endpoint selection. */
struct hash_pair {
	__u32 node;
	__u32 endpoint;
};

static __always_inline struct hash_pair hash_pair(__u64 sum)
{
	__u64 hash = hash_final(sum + hash_addend);
	struct hash_pair pair = { .node = hash >> 32, .endpoint = hash };

	return pair;
}

/* In network byte order. The lower half of ports is the client's. */
static __always_inline struct hash_pair hash_ipv4(__u32 client, __u32 vip, __u32 ports,
						  __u8 protocol)
{
	__u64 sum = hash_add(hash_add(0, client, &client_multipliers[3]), vip, &vip_multipliers[3]);

	return hash_pair(hash_rest(sum, ports, protocol));
}

static __always_inline __u64 hash_vip(const __be32 *vip)
{
	return hash_address(0, vip, vip_multipliers);
}

/* Hashes the masked IPv4 address or the /64 of an IPv6 address. */
static __always_inline __u64 hash_source(const struct flow *flow, __be32 mask)
{
	const __be32 *word = flow->client.word;

	if (flow->family == ADDRESS_FAMILY_IPV4)
		return hash_add(0, word[3] & mask, &client_multipliers[3]);
	return hash_add(hash_add(0, word[0], &client_multipliers[0]), word[1],
			&client_multipliers[1]);
}

/* hashed is hash_vip() of the VIP. */
static __always_inline __u64 hash_sum(const __be32 *client, __u64 hashed, __u32 ports,
				      __u8 protocol)
{
	return hash_rest(hash_address(hashed, client, client_multipliers), ports, protocol);
}

static __always_inline struct hash_pair hash_ipv6(const __be32 *client, __u64 hashed, __u32 ports,
						  __u8 protocol)
{
	return hash_pair(hash_sum(client, hashed, ports, protocol));
}

/* With session affinity the client's port is ignored. In STEP_SWITCHED it is the reverse. */
static __always_inline void hash_flow(struct packet *packet, const struct frontend *frontend)
{
	const struct flow *flow = &packet->flow;
	int is_switched = frontend->switched && packet->zone_steps == STEP_SWITCHED;
	int by_client = frontend->affinity ? !is_switched : is_switched;
	__be16 client_port = by_client ? 0 : flow->client_port;
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
