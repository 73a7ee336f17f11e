/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "maps.h"

/* Two ports as a word that is loaded from the header or written to a key: little-endian,
 * as the programs are compiled.
 */
static __always_inline __u32 two_ports(__be16 first, __be16 second)
{
	return (__u32)second << 16 | first;
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

	struct frontend_key6 key = {
		.vip = flow->vip,
		.port = flow->vip_port,
		.protocol = flow->protocol,
	};

	return bpf_map_lookup_elem(&frontends6, &key);
}

static __always_inline int is_vip(const struct address *address)
{
	return bpf_map_lookup_elem(&vips, address) != NULL;
}
