/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/in.h>

#include "endpoint.h"
#include "frontend.h"
#include "hash.h"
#include "maps.h"
#include "settings.h"
#include "trace.h"

/* Remnants of established flows whose entries were evicted: eight bytes per direction instead of
 * about a hundred. The forward direction stores the endpoint's id, the reverse direction the
 * frontend's id.
 *
 * Clients may also connect to an endpoint directly, and such replies must not be rewritten. A reply
 * without an entry is therefore rewritten only if both directions have a matching remnant.
 *
 * SYN floods create no remnants, but spoofed datagrams and compromised pods do. Protocols other
 * than TCP, and VIPs over their connection quota, therefore share a part of each bucket. Closed
 * flows are removed.
 *
 * A bucket is one cache line. A slot contains a fingerprint, the rest of the hash, which includes
 * the endpoint's tag in the forward direction.
 */
#define EVICTED_DATA_SLOTS (EVICTED_SLOTS / 4)
#define EVICTED_TCP_SLOTS (EVICTED_SLOTS - EVICTED_DATA_SLOTS)

/* Number of buckets minus 1 (a power of two minus 1). Set by the loader. */
volatile const __u32 evicted_mask;

enum evicted_seed {
	EVICTED_ENDPOINT = 0x5eed0001,
	EVICTED_FRONTEND = 0x5eed0002,
};

struct evicted_place {
	__u32 bucket;
	__u32 fingerprint;
};

/* flow is in the client's direction. In the reverse direction the endpoint replaces the VIP. */
static __always_inline struct evicted_place evicted_place(const struct flow *flow,
							  enum evicted_seed seed)
{
	__u32 ports = two_ports(flow->client_port, flow->vip_port);
	__u64 sum = hash_sum(flow->client.word, hash_vip(flow->vip.word), ports, flow->protocol);
	struct hash_pair hash = hash_pair(seed + sum);
	struct evicted_place place = {
		.bucket = hash.endpoint & evicted_mask,
		.fingerprint = hash.node,
	};

	return place;
}

static __always_inline struct evicted_flow_bucket *evicted_bucket(const struct evicted_place *place)
{
	return bpf_map_lookup_elem(&evicted_flows, &place->bucket);
}

static __always_inline struct evicted_flow *evicted_slot(struct evicted_flow_bucket *bucket,
							 __u32 fingerprint)
{
#pragma unroll
	for (int i = 0; i < EVICTED_SLOTS; i++) {
		struct evicted_flow *slot = &bucket->slot[i];

		if (slot->id && slot->fingerprint == fingerprint)
			return slot;
	}
	return NULL;
}

/* is_shared: protocols other than TCP, and VIPs over their quota of connections. */
static __always_inline int evicted_takes(int is_shared, int slot)
{
	return !is_shared == (slot >= EVICTED_DATA_SLOTS);
}

/* Scales the upper half of the fingerprint to the range of slots. */
static __always_inline __u32 evicted_pick(int is_shared, __u32 fingerprint)
{
	if (is_shared)
		return (fingerprint >> 16) * EVICTED_DATA_SLOTS >> 16;
	return EVICTED_DATA_SLOTS + ((fingerprint >> 16) * EVICTED_TCP_SLOTS >> 16);
}

/* Uses the flow's own slot, an empty slot, or the one selected by the fingerprint. */
static __always_inline void evicted_put(const struct flow *flow, enum evicted_seed seed, __u32 id,
					__u32 tag, int is_shared)
{
	struct evicted_place place = evicted_place(flow, seed);
	struct evicted_flow_bucket *bucket = evicted_bucket(&place);
	__u32 fingerprint = place.fingerprint ^ tag;
	struct evicted_flow *slot;

	if (!bucket || tracing)
		return;
	slot = evicted_slot(bucket, fingerprint);
#pragma unroll
	for (int i = 0; i < EVICTED_SLOTS; i++)
		if (!slot && !bucket->slot[i].id && evicted_takes(is_shared, i))
			slot = &bucket->slot[i];
	if (!slot)
		slot = &bucket->slot[evicted_pick(is_shared, fingerprint)];
	slot->fingerprint = fingerprint;
	slot->id = id;
}

/* Returns the id of the flow's endpoint if it still exists, else 0. */
__noinline __u32 recall_endpoint(const struct flow *flow)
{
	struct evicted_place place;
	struct evicted_flow_bucket *bucket;

	if (!flow)
		return 0;
	place = evicted_place(flow, EVICTED_ENDPOINT);
	bucket = evicted_bucket(&place);
	if (!bucket)
		return 0;
	for (int i = 0; i < EVICTED_SLOTS; i++) {
		struct evicted_flow *slot = &bucket->slot[i];
		struct endpoint *endpoint = endpoint_get(slot->id);

		if (endpoint && slot->fingerprint == (place.fingerprint ^ endpoint->tag))
			return slot->id;
	}
	return 0;
}

static __always_inline struct flow flow_of_endpoint(const struct flow *flow,
						    const struct endpoint *endpoint)
{
	struct flow answers = *flow;

	answers.vip = endpoint->address;
	answers.vip_port = endpoint->port;
	return answers;
}

static __always_inline void evicted_clear(const struct flow *flow, enum evicted_seed seed,
					  __u32 tag)
{
	struct evicted_place place = evicted_place(flow, seed);
	struct evicted_flow_bucket *bucket = evicted_bucket(&place);
	struct evicted_flow *slot = bucket ? evicted_slot(bucket, place.fingerprint ^ tag) : NULL;

	if (slot && !tracing)
		slot->id = 0;
}

static __always_inline void evicted_forget(const struct flow *flow)
{
	struct endpoint *endpoint = endpoint_get(recall_endpoint(flow));
	struct flow answers;

	if (!endpoint)
		return;
	evicted_clear(flow, EVICTED_ENDPOINT, endpoint->tag);
	answers = flow_of_endpoint(flow, endpoint);
	evicted_clear(&answers, EVICTED_FRONTEND, 0);
}

__noinline int forget(const struct flow *flow)
{
	if (flow)
		evicted_forget(flow);
	return 0;
}

__noinline int remember(const struct flow *flow, const struct frontend *frontend, __u32 id,
			int is_shared)
{
	struct endpoint *endpoint = endpoint_get(id);
	struct flow answers;

	if (!flow || !frontend || !endpoint)
		return 0;
	is_shared |= flow->protocol != IPPROTO_TCP;
	evicted_put(flow, EVICTED_ENDPOINT, id, endpoint->tag, is_shared);
	answers = flow_of_endpoint(flow, endpoint);
	evicted_put(&answers, EVICTED_FRONTEND, frontend->id, 0, is_shared);
	return 0;
}

/* Replaces the endpoint in answers by the VIP and returns 1 if both directions match. */
__noinline int recall_vip(struct flow *answers)
{
	struct evicted_flow_bucket *bucket;
	struct evicted_place place;
	struct endpoint *endpoint;
	struct frontend_key6 *key;
	struct evicted_flow *slot;
	struct flow flow;
	__u32 id;

	if (!answers)
		return 0;
	place = evicted_place(answers, EVICTED_FRONTEND);
	bucket = evicted_bucket(&place);
	slot = bucket ? evicted_slot(bucket, place.fingerprint) : NULL;
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
