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
 * datagrams can establish flows, where pods answer them, and a hostile pod can establish connections
 * with any address: other protocols than TCP, and VIPs over their quota of connections, share a part
 * of each bucket. A closed flow is forgotten.
 *
 * A flow's place is a bucket of one cache line, and there any slot with its fingerprint. That
 * is the rest of the hash; for the id of an endpoint it is changed by the endpoint's tag.
 */
/* The first slots of a bucket are shared: see evicted_takes. */
#define EVICTED_DATA_SLOTS (EVICTED_SLOTS / 4)
#define EVICTED_TCP_SLOTS (EVICTED_SLOTS - EVICTED_DATA_SLOTS)

/* The number of buckets less one; a power of two less one. Set by the loader. */
volatile const __u32 evicted_mask;

enum evicted_seed {
	EVICTED_ENDPOINT = 0x5eed0001,
	EVICTED_FRONTEND = 0x5eed0002,
};

struct evicted_place {
	__u32 bucket;
	__u32 fingerprint;
};

/* flow is in the client's direction. To find its frontend it has the endpoint's address and
 * port in place of the VIP's.
 */
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

/* The slot with the fingerprint, or NULL. */
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

/* Reports whether flows take the slot. is_shared is not zero for flows of other protocols than TCP,
 * and of VIPs over their quota of connections.
 */
static __always_inline int evicted_takes(int is_shared, int slot)
{
	return !is_shared == (slot >= EVICTED_DATA_SLOTS);
}

/* Scales the upper half of the fingerprint to the slots that such flows take. */
static __always_inline __u32 evicted_pick(int is_shared, __u32 fingerprint)
{
	if (is_shared)
		return (fingerprint >> 16) * EVICTED_DATA_SLOTS >> 16;
	return EVICTED_DATA_SLOTS + ((fingerprint >> 16) * EVICTED_TCP_SLOTS >> 16);
}

/* Overwrites the same flow's slot, else an empty one, else one picked by the fingerprint. */
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

/* The id of the flow's endpoint, if it still exists; else zero. */
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

/* The flow as its endpoint sends it. */
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

/* Finds the frontend of a reply without an entry. answers has the endpoint's address and port
 * in place of the VIP's, which it gets. Returns 1 if both directions agree.
 */
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
