/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "endpoint.h"
#include "frontend.h"
#include "hash.h"
#include "maps.h"
#include "settings.h"
#include "trace.h"

/* What remains of an established flow after its entries were evicted: eight bytes in each
 * direction in place of about a hundred. The table has room for several times as many flows.
 * The client's direction has the id of the endpoint; the endpoint's direction has that of the
 * frontend.
 *
 * Clients may also reach an endpoint directly. Those replies look the same and must not be
 * rewritten, even if the endpoint has only one frontend. So a reply without an entry is
 * rewritten only if both directions are remembered and agree.
 *
 * Only established flows are remembered, so spoofed packets of TCP make none forgotten. Spoofed
 * datagrams can establish flows, where pods answer them: what is not TCP has a part of each bucket
 * of its own, as large in proportion as its tables of flows. A closed flow is forgotten.
 *
 * A flow's place is a bucket of one cache line, and there any slot with its fingerprint. That
 * is the rest of the hash; for the id of an endpoint it is changed by the endpoint's tag.
 */
/* The slots of a bucket that flows of other protocols than TCP take: the first ones. */
#define MEMORY_DATA_SLOTS (MEMORY_SLOTS / 4)
#define MEMORY_TCP_SLOTS (MEMORY_SLOTS - MEMORY_DATA_SLOTS)

/* The number of buckets less one; a power of two less one. Set by the loader. */
volatile const __u32 memory_mask;

enum memory_seed {
	MEMORY_ENDPOINT = 0x5eed0001,
	MEMORY_FRONTEND = 0x5eed0002,
};

struct memory_place {
	__u32 bucket;
	__u32 fingerprint;
};

/* flow is in the client's direction. To find its frontend it has the endpoint's address and
 * port in place of the VIP's.
 */
static __always_inline struct memory_place memory_place(const struct flow *flow,
							enum memory_seed seed)
{
	__u32 ports = two_ports(flow->client_port, flow->vip_port);
	__u64 sum = hash_sum(flow->client.word, hash_vip(flow->vip.word), ports, flow->protocol);
	struct hash_pair hash = hash_pair(seed + sum);
	struct memory_place place = {
		.bucket = hash.endpoint & memory_mask,
		.fingerprint = hash.node,
	};

	return place;
}

static __always_inline struct memory_bucket *memory_bucket(const struct memory_place *place)
{
	return bpf_map_lookup_elem(&memories, &place->bucket);
}

/* The slot with the fingerprint, or NULL. */
static __always_inline struct memory *memory_slot(struct memory_bucket *bucket, __u32 fingerprint)
{
#pragma unroll
	for (int i = 0; i < MEMORY_SLOTS; i++) {
		struct memory *slot = &bucket->slot[i];

		if (slot->id && slot->fingerprint == fingerprint)
			return slot;
	}
	return NULL;
}

/* Reports whether the protocol's flows take the slot. */
static __always_inline int memory_takes(__u8 protocol, int slot)
{
	return (protocol == IPPROTO_TCP) == (slot >= MEMORY_DATA_SLOTS);
}

/* Scales the upper half of the fingerprint to the slots that the protocol's flows take. */
static __always_inline __u32 memory_pick(__u8 protocol, __u32 fingerprint)
{
	if (protocol != IPPROTO_TCP)
		return (fingerprint >> 16) * MEMORY_DATA_SLOTS >> 16;
	return MEMORY_DATA_SLOTS + ((fingerprint >> 16) * MEMORY_TCP_SLOTS >> 16);
}

/* Overwrites the same flow's slot, else an empty one, else one picked by the fingerprint. */
static __always_inline void memory_put(const struct flow *flow, enum memory_seed seed, __u32 id,
				       __u32 tag)
{
	struct memory_place place = memory_place(flow, seed);
	struct memory_bucket *bucket = memory_bucket(&place);
	__u32 fingerprint = place.fingerprint ^ tag;
	struct memory *slot;

	if (!bucket || tracing)
		return;
	slot = memory_slot(bucket, fingerprint);
#pragma unroll
	for (int i = 0; i < MEMORY_SLOTS; i++)
		if (!slot && !bucket->slot[i].id && memory_takes(flow->protocol, i))
			slot = &bucket->slot[i];
	if (!slot)
		slot = &bucket->slot[memory_pick(flow->protocol, fingerprint)];
	slot->fingerprint = fingerprint;
	slot->id = id;
}

/* The id of the flow's endpoint, if it still exists; else zero. */
__noinline __u32 recall_endpoint(const struct flow *flow)
{
	struct memory_place place;
	struct memory_bucket *bucket;

	if (!flow)
		return 0;
	place = memory_place(flow, MEMORY_ENDPOINT);
	bucket = memory_bucket(&place);
	if (!bucket)
		return 0;
	for (int i = 0; i < MEMORY_SLOTS; i++) {
		struct memory *slot = &bucket->slot[i];
		struct endpoint *endpoint = endpoint_get(slot->id);

		if (endpoint && slot->fingerprint == (place.fingerprint ^ endpoint->tag))
			return slot->id;
	}
	return 0;
}

/* The flow as its endpoint sends it. */
static __always_inline struct flow flow_of_endpoint(const struct flow *flow,
						    const struct endpoint *endpoint)
{
	struct flow answers = *flow;

	answers.vip = endpoint->address;
	answers.vip_port = endpoint->port;
	return answers;
}

static __always_inline void memory_clear(const struct flow *flow, enum memory_seed seed, __u32 tag)
{
	struct memory_place place = memory_place(flow, seed);
	struct memory_bucket *bucket = memory_bucket(&place);
	struct memory *slot = bucket ? memory_slot(bucket, place.fingerprint ^ tag) : NULL;

	if (slot && !tracing)
		slot->id = 0;
}

static __always_inline void memory_forget(const struct flow *flow)
{
	struct endpoint *endpoint = endpoint_get(recall_endpoint(flow));
	struct flow answers;

	if (!endpoint)
		return;
	memory_clear(flow, MEMORY_ENDPOINT, endpoint->tag);
	answers = flow_of_endpoint(flow, endpoint);
	memory_clear(&answers, MEMORY_FRONTEND, 0);
}

__noinline int forget(const struct flow *flow)
{
	if (flow)
		memory_forget(flow);
	return 0;
}

__noinline int remember(const struct flow *flow, const struct frontend *frontend, __u32 id)
{
	struct endpoint *endpoint = endpoint_get(id);
	struct flow answers;

	if (!flow || !frontend || !endpoint)
		return 0;
	/* A former flow of the same client's port had another endpoint. */
	memory_forget(flow);
	memory_put(flow, MEMORY_ENDPOINT, id, endpoint->tag);
	answers = flow_of_endpoint(flow, endpoint);
	memory_put(&answers, MEMORY_FRONTEND, frontend->id, 0);
	return 0;
}

/* Finds the frontend of a reply without an entry. answers has the endpoint's address and port
 * in place of the VIP's, which it gets. Returns 1 if both directions agree.
 */
__noinline int recall_vip(struct flow *answers)
{
	struct memory_bucket *bucket;
	struct memory_place place;
	struct endpoint *endpoint;
	struct frontend_key6 *key;
	struct memory *slot;
	struct flow flow;
	__u32 id;

	if (!answers)
		return 0;
	place = memory_place(answers, MEMORY_FRONTEND);
	bucket = memory_bucket(&place);
	slot = bucket ? memory_slot(bucket, place.fingerprint) : NULL;
	if (!slot)
		return 0;
	id = slot->id;
	key = bpf_map_lookup_elem(&frontend_keys, &id);
	if (!key)
		return 0;
	flow = *answers;
	flow.vip = key->vip;
	flow.vip_port = key->port;
	endpoint = endpoint_get(recall_endpoint(&flow));
	if (!endpoint || endpoint->port != answers->vip_port ||
	    !address_equal(&endpoint->address, &answers->vip))
		return 0;
	*answers = flow;
	return 1;
}
