/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "endpoint.h"
#include "frontend.h"
#include "hash.h"
#include "maps.h"
#include "settings.h"
#include "trace.h"

/* Digests of established flows whose entries were evicted: eight bytes per direction instead of
 * about a hundred. The forward direction stores the endpoint's id, the reverse direction the
 * frontend's id.
 *
 * Clients may also connect to an endpoint directly, and such replies must not be rewritten. A reply
 * without an entry is therefore rewritten only if both directions have a matching digest.
 *
 * SYN floods create no digests, but spoofed datagrams and compromised pods do. Protocols other
 * than TCP, and VIPs over their connection quota, therefore share a part of each bucket. Closed
 * flows are removed.
 *
 * A bucket is one cache line. A slot contains a fingerprint, the rest of the hash, which includes
 * the endpoint's tag in the forward direction.
 */
#define DIGEST_DATA_SLOTS (DIGEST_SLOTS / 4)
#define DIGEST_TCP_SLOTS (DIGEST_SLOTS - DIGEST_DATA_SLOTS)

/* Number of buckets minus 1 (a power of two minus 1). Set by the loader. */
volatile const __u32 digest_mask;

enum digest_seed {
	DIGEST_ENDPOINT = 0x5eed0001,
	DIGEST_FRONTEND = 0x5eed0002,
};

struct digest_place {
	__u32 bucket;
	__u32 fingerprint;
};

/* flow is in the client's direction. In the reverse direction the endpoint replaces the VIP. */
static __always_inline struct digest_place digest_place(const struct flow *flow,
							enum digest_seed seed)
{
	__u32 ports = two_ports(flow->client_port, flow->vip_port);
	__u64 sum = hash_sum(flow->client.word, hash_vip(flow->vip.word), ports, flow->protocol);
	struct hash_pair hash = hash_pair(seed + sum);
	struct digest_place place = {
		.bucket = hash.endpoint & digest_mask,
		.fingerprint = hash.node,
	};

	return place;
}

static __always_inline struct flow_digest_bucket *digest_bucket(const struct digest_place *place)
{
	return bpf_map_lookup_elem(&flow_digests, &place->bucket);
}

static __always_inline struct flow_digest *digest_slot(struct flow_digest_bucket *bucket,
						       __u32 fingerprint)
{
#pragma unroll
	for (int i = 0; i < DIGEST_SLOTS; i++) {
		struct flow_digest *slot = &bucket->slot[i];

		if (slot->id && slot->fingerprint == fingerprint)
			return slot;
	}
	return NULL;
}

/* is_shared: protocols other than TCP, and VIPs over their quota of connections. */
static __always_inline int digest_accepts(int is_shared, int slot)
{
	return !is_shared == (slot >= DIGEST_DATA_SLOTS);
}

/* Scales the upper half of the fingerprint to the range of slots. */
static __always_inline __u32 digest_victim(int is_shared, __u32 fingerprint)
{
	if (is_shared)
		return (fingerprint >> 16) * DIGEST_DATA_SLOTS >> 16;
	return DIGEST_DATA_SLOTS + ((fingerprint >> 16) * DIGEST_TCP_SLOTS >> 16);
}

/* Uses the flow's own slot, an empty slot, or the one selected by the fingerprint. */
static __always_inline void digest_insert(const struct flow *flow, enum digest_seed seed, __u32 id,
					  __u32 tag, int is_shared)
{
	struct digest_place place = digest_place(flow, seed);
	struct flow_digest_bucket *bucket = digest_bucket(&place);
	__u32 fingerprint = place.fingerprint ^ tag;
	struct flow_digest *slot;

	if (!bucket || tracing)
		return;
	slot = digest_slot(bucket, fingerprint);
#pragma unroll
	for (int i = 0; i < DIGEST_SLOTS; i++)
		if (!slot && !bucket->slot[i].id && digest_accepts(is_shared, i))
			slot = &bucket->slot[i];
	if (!slot)
		slot = &bucket->slot[digest_victim(is_shared, fingerprint)];
	slot->fingerprint = fingerprint;
	slot->id = id;
}

/* Returns the id of the flow's endpoint if it still exists, else 0. */
__noinline __u32 digest_endpoint(const struct flow *flow)
{
	struct digest_place place;
	struct flow_digest_bucket *bucket;

	if (!flow)
		return 0;
	place = digest_place(flow, DIGEST_ENDPOINT);
	bucket = digest_bucket(&place);
	if (!bucket)
		return 0;
	for (int i = 0; i < DIGEST_SLOTS; i++) {
		struct flow_digest *slot = &bucket->slot[i];
		struct endpoint *endpoint = endpoint_get(slot->id);

		if (endpoint && slot->fingerprint == (place.fingerprint ^ endpoint->tag))
			return slot->id;
	}
	return 0;
}

static __always_inline struct flow flow_of_endpoint(const struct flow *flow,
						    const struct endpoint *endpoint)
{
	struct flow reply = *flow;

	reply.vip = endpoint->address;
	reply.vip_port = endpoint->port;
	return reply;
}

static __always_inline void digest_clear(const struct flow *flow, enum digest_seed seed, __u32 tag)
{
	struct digest_place place = digest_place(flow, seed);
	struct flow_digest_bucket *bucket = digest_bucket(&place);
	struct flow_digest *slot = bucket ? digest_slot(bucket, place.fingerprint ^ tag) : NULL;

	if (slot && !tracing)
		slot->id = 0;
}

static __always_inline void digest_delete_both(const struct flow *flow)
{
	struct endpoint *endpoint = endpoint_get(digest_endpoint(flow));
	struct flow reply;

	if (!endpoint)
		return;
	digest_clear(flow, DIGEST_ENDPOINT, endpoint->tag);
	reply = flow_of_endpoint(flow, endpoint);
	digest_clear(&reply, DIGEST_FRONTEND, 0);
}

__noinline int digest_delete(const struct flow *flow)
{
	if (flow)
		digest_delete_both(flow);
	return 0;
}

__noinline int digest_store(const struct flow *flow, const struct frontend *frontend, __u32 id,
			    int is_shared)
{
	struct endpoint *endpoint = endpoint_get(id);
	struct flow reply;

	if (!flow || !frontend || !endpoint)
		return 0;
	is_shared |= flow->protocol != IPPROTO_TCP;
	digest_insert(flow, DIGEST_ENDPOINT, id, endpoint->tag, is_shared);
	reply = flow_of_endpoint(flow, endpoint);
	digest_insert(&reply, DIGEST_FRONTEND, frontend->id, 0, is_shared);
	return 0;
}

/* Replaces the endpoint in reply by the VIP and returns 1 if both directions match. */
__noinline int digest_vip(struct flow *reply)
{
	struct flow_digest_bucket *bucket;
	struct digest_place place;
	struct endpoint *endpoint;
	struct frontend_key6 *key;
	struct flow_digest *slot;
	struct flow flow;
	__u32 id;

	if (!reply)
		return 0;
	place = digest_place(reply, DIGEST_FRONTEND);
	bucket = digest_bucket(&place);
	slot = bucket ? digest_slot(bucket, place.fingerprint) : NULL;
	if (!slot)
		return 0;
	id = slot->id;
	key = bpf_map_lookup_elem(&frontend_keys, &id);
	if (!key)
		return 0;
	flow = *reply;
	flow.vip = key->vip;
	flow.vip_port = key->port;
	endpoint = endpoint_get(digest_endpoint(&flow));
	if (!endpoint || endpoint->port != reply->vip_port ||
	    !address_equal(&endpoint->address, &reply->vip))
		return 0;
	*reply = flow;
	return 1;
}
