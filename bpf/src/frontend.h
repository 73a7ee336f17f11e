/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "hash.h"
#include "maps.h"
#include "settings.h"

/* Packs two ports as in a header or key, in one little-endian word. */
static __always_inline __u32 two_ports(__be16 first, __be16 second)
{
	return (__u32)second << 16 | first;
}

/* Returns the last word of a struct frontend_key6. */
static __always_inline __u32 frontend_port(__be16 port, __u8 protocol)
{
	return port | (__u32)protocol << 16;
}

/* Hashes of frontends are distinct, but not of other packets. hashed is hash_vip() of the VIP. */
static __always_inline struct frontend *frontend6_find(const void *vip, __u64 hashed, __u32 port)
{
	__u64 key = hashed + port * frontend_multiplier;
	struct frontend6 *found = bpf_map_lookup_elem(&frontends6, &key);

	if (!found || !address_equal(&found->key.vip, vip) || *(__u32 *)&found->key.port != port)
		return NULL;
	return &found->frontend;
}

static __always_inline struct frontend *frontend_find(const struct flow *flow)
{
	if (flow->family == ADDRESS_FAMILY_IPV4) {
		struct frontend_key4 key = {
			.vip = flow->vip.word[3],
			.port = flow->vip_port,
			.protocol = flow->protocol,
		};

		return bpf_map_lookup_elem(&frontends4, &key);
	}

	return frontend6_find(&flow->vip, hash_vip(flow->vip.word),
			      frontend_port(flow->vip_port, flow->protocol));
}

static __always_inline int is_vip(const struct address *address)
{
	return bpf_map_lookup_elem(&vips, address) != NULL;
}
