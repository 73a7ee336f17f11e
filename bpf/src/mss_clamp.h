/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "settings.h"

#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2
#define TCP_OPTION_MSS_LENGTH 4
#define TCP_MAX_OPTIONS 40

/* Options are read by bytes: Linux 6.1 rejects reads of variable length. */
struct mss_walk {
	struct __sk_buff *skb;
	__u32 l4;
	__u32 position;
	__u32 end;
	__u32 limit;
};

static __always_inline void mss_lower(const struct mss_walk *walk, __u32 offset)
{
	__u32 check = walk->l4 + offsetof(struct tcphdr, check);
	__be16 from, to = bpf_htons(walk->limit);

	if (bpf_skb_load_bytes(walk->skb, offset, &from, sizeof(from)) ||
	    bpf_ntohs(from) <= walk->limit)
		return;
	bpf_skb_store_bytes(walk->skb, offset, &to, sizeof(to), 0);
	/* RFC 1071 section 2(B): at an odd offset the bytes are swapped. */
	if ((offset - walk->l4) & 1)
		bpf_l4_csum_replace(walk->skb, check, __builtin_bswap16(from),
				    __builtin_bswap16(to), sizeof(to));
	else
		bpf_l4_csum_replace(walk->skb, check, from, to, sizeof(to));
}

/* bpf_loop() callback. Lowers each MSS option, because Linux uses the last one. */
static long mss_step(__u32 step, struct mss_walk *walk)
{
	__u8 kind, length;

	if (walk->position >= walk->end ||
	    bpf_skb_load_bytes(walk->skb, walk->position, &kind, sizeof(kind)))
		return 1;
	if (kind == TCP_OPTION_END)
		return 1;
	if (kind == TCP_OPTION_NOP) {
		walk->position++;
		return 0;
	}
	if (walk->position + 1 >= walk->end ||
	    bpf_skb_load_bytes(walk->skb, walk->position + 1, &length, sizeof(length)))
		return 1;
	if (length < 2)
		return 1;
	if (kind == TCP_OPTION_MSS && length == TCP_OPTION_MSS_LENGTH &&
	    walk->position + length <= walk->end)
		mss_lower(walk, walk->position + 2);
	walk->position += length;
	return 0;
}

/* RFC 9293 section 3.7.1. headers are the bytes of IP and TCP headers without options. */
static __always_inline void mss_clamp(struct __sk_buff *skb, __u32 l4, __u32 headers)
{
	struct mss_walk walk = { .skb = skb, .l4 = l4, .position = l4 + sizeof(struct tcphdr) };
	struct self *self = settings_get();
	__u32 mtu = 0;
	__u8 offset;

	if (!self || bpf_check_mtu(skb, 0, &mtu, 0, 0) < 0)
		return;
	if (mtu <= headers + self->overhead)
		return;
	walk.limit = mtu - headers - self->overhead;
	if (walk.limit > 0xffff)
		return;
	if (bpf_skb_load_bytes(skb, l4 + 12, &offset, sizeof(offset)))
		return;
	walk.end = l4 + (offset >> 4) * 4;
	bpf_loop(TCP_MAX_OPTIONS, mss_step, &walk, 0);
}
