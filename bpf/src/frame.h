/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "types.h"

/* Returns a pointer to the offset, masked for the verifier. Headers end at offset 704 at most:
 * outer IPv6 header, maximum Geneve options, inner IPv6 header with 256 bytes of extension headers,
 * and an ICMP error about an IPv4 packet with options.
 */
#define MAX_OFFSET 0x3ff

static __always_inline void *frame_at(const struct xdp_md *ctx, __u32 offset)
{
	void *start;

	/* clang 22 may emit 32-bit copies of a plain load, which the verifier rejects as pointers.
	 */
	asm volatile("%0 = *(u32 *)(%1 + %2)"
		     : "=r"(start)
		     : "r"(ctx), "i"(offsetof(struct xdp_md, data)));
	return start + (offset & MAX_OFFSET);
}

/* Reports whether the frame contains the whole IP packet, including XDP fragments. */
static __always_inline int frame_holds(struct xdp_md *ctx, const struct packet *packet)
{
	long linear = ctx->data_end - ctx->data;

	if (packet->l3 + packet->length <= linear)
		return 1;
	return packet->l3 + packet->length <= bpf_xdp_get_buff_len(ctx);
}

/* Ethernet addresses as words: the packed struct ethhdr would be copied by bytes. */
struct stations {
	__u32 word[3];
};

/* start has eight bytes of the frame. XDP also sees flooded frames. */
static __always_inline int station_is_ours(const __u64 *start, const struct self *self)
{
	__u64 mac = *start << 16 >> 16;

	/* Unused entry. */
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
