/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "maps.h"

static __always_inline struct self *settings_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline int address_is_zero(const struct address *address)
{
	return !(address->word[0] | address->word[1] | address->word[2] | address->word[3]);
}

static __always_inline int address_equal(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] &&
	       a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

/* Whether the address is one at which this node receives encapsulated packets. */
static __always_inline int is_self(const struct self *self, const struct flow *outer)
{
	if (outer->family == ADDRESS_FAMILY_IPV4)
		return self->ipv4 && self->ipv4 == outer->vip.word[3];
	return !address_is_zero(&self->ipv6) && address_equal(&self->ipv6, &outer->vip);
}

/* The Ethernet addresses of a frame, by words: a struct ethhdr is packed, and the compiler
 * goes through it by bytes.
 */
struct stations {
	__u32 word[3];
};

/* Whether the frame whose start is given, at least eight bytes of it, is addressed to this
 * station: flooded and promiscuously received frames reach XDP too, and two nodes must not
 * both take them.
 */
static __always_inline int station_is_ours(const __u64 *start, const struct self *self)
{
	__u64 mac = *start << 16 >> 16;

	/* As unused places are. */
	if (!mac)
		return 0;
#pragma unroll
	for (int i = 0; i < UPLINK_MACS; i++) {
		if (self->uplink_mac[i] == mac)
			return 1;
	}
	return 0;
}

static __always_inline int frame_is_ours(struct xdp_md *ctx, const struct self *self)
{
	const __u64 *start = (void *)(long)ctx->data;

	return (void *)(start + 1) <= (void *)(long)ctx->data_end && station_is_ours(start, self);
}
