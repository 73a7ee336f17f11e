/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "types.h"

/* Pointer to the offset in the frame. The mask shows the verifier how far that can be. The
 * headers that are read end at 704 at most: an outer IPv6 header, all the options that Geneve
 * can have, an inner IPv6 header with 256 bytes of extension headers, and an ICMP error about
 * an IPv4 packet with options.
 */
#define MAX_OFFSET 0x3ff

static __always_inline void *frame_at(const struct xdp_md *ctx, __u32 offset)
{
	void *start;

	/* Of a plain load of 32 bits clang 22 may make copies of 32 bits, which are no pointers to
	 * the verifier.
	 */
	asm volatile("%0 = *(u32 *)(%1 + %2)"
		     : "=r"(start)
		     : "r"(ctx), "i"(offsetof(struct xdp_md, data)));
	return start + (offset & MAX_OFFSET);
}

/* Reports whether the frame holds the whole IP packet. Of a frame in several buffers, only the
 * first lies between data and data_end.
 */
static __always_inline int frame_holds(struct xdp_md *ctx, const struct packet *packet)
{
	long linear = ctx->data_end - ctx->data;

	if (packet->l3 + packet->length <= linear)
		return 1;
	return packet->l3 + packet->length <= bpf_xdp_get_buff_len(ctx);
}

/* The Ethernet addresses of a frame, by words. A struct ethhdr is packed, so the compiler
 * copies it by bytes.
 */
struct stations {
	__u32 word[3];
};

/* Reports whether the frame is addressed to this station; start has eight bytes of it. XDP
 * also sees flooded frames, and two nodes must not both take one.
 */
static __always_inline int station_is_ours(const __u64 *start, const struct self *self)
{
	__u64 mac = *start << 16 >> 16;

	/* Zero is an unused place. */
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
