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

struct mss_walk {
	__u8 options[TCP_MAX_OPTIONS];
	__u32 length;
	__u32 position;
	/* Offset of the MSS option among the options, or -1. */
	int found;
};

static long mss_step(__u32 step, struct mss_walk *walk)
{
	__u32 position = walk->position;
	__u8 kind, length;

	if (position >= walk->length || position >= TCP_MAX_OPTIONS)
		return 1;
	kind = walk->options[position];
	if (kind == TCP_OPTION_END)
		return 1;
	if (kind == TCP_OPTION_NOP) {
		walk->position++;
		return 0;
	}
	if (position + 1 >= walk->length || position + 1 >= TCP_MAX_OPTIONS)
		return 1;
	length = walk->options[position + 1];
	if (length < 2)
		return 1;
	if (kind == TCP_OPTION_MSS) {
		if (length == TCP_OPTION_MSS_LENGTH && position + length <= walk->length)
			walk->found = position;
		return 1;
	}
	walk->position += length;
	return 0;
}

/* Writes the smaller segment size, at any alignment. */
static __always_inline void mss_write(struct __sk_buff *skb, __u32 l4, __u32 offset, __be16 from,
				      __be16 to)
{
	__u32 check = l4 + offsetof(struct tcphdr, check);

	bpf_skb_store_bytes(skb, offset, &to, sizeof(to), 0);
	/* RFC 1071 section 2(B): in an odd place the bytes of the sum are swapped. */
	if ((offset - l4) & 1)
		bpf_l4_csum_replace(skb, check, __builtin_bswap16(from), __builtin_bswap16(to),
				    sizeof(to));
	else
		bpf_l4_csum_replace(skb, check, from, to, sizeof(to));
}

/* Lowers the MSS option of a SYN-ACK (RFC 9293 section 3.7.1) so that the client's
 * segments still fit the network after encapsulation. headers are the bytes of
 * the IP and the TCP header without options.
 */
static __always_inline void mss_clamp(struct __sk_buff *skb, __u32 l4, __u32 headers)
{
	struct mss_walk walk = { .found = -1 };
	struct self *self = settings_get();
	__u32 mtu = 0, limit, length;
	__be16 mss;
	__u8 offset;

	if (!self || bpf_check_mtu(skb, 0, &mtu, 0, 0) < 0)
		return;
	if (mtu <= headers + self->overhead)
		return;
	limit = mtu - headers - self->overhead;
	if (limit > 0xffff)
		return;
	if (bpf_skb_load_bytes(skb, l4 + 12, &offset, sizeof(offset)))
		return;
	length = (offset >> 4) * 4;
	if (length <= sizeof(struct tcphdr))
		return;
	length -= sizeof(struct tcphdr);
	if (length > TCP_MAX_OPTIONS)
		return;
	if (bpf_skb_load_bytes(skb, l4 + sizeof(struct tcphdr), walk.options, length))
		return;
	walk.length = length;
	bpf_loop(TCP_MAX_OPTIONS, mss_step, &walk, 0);
	if (walk.found < 0 || walk.found > TCP_MAX_OPTIONS - TCP_OPTION_MSS_LENGTH)
		return;
	length = l4 + sizeof(struct tcphdr) + walk.found + 2;
	if (bpf_skb_load_bytes(skb, length, &mss, sizeof(mss)))
		return;
	if (bpf_ntohs(mss) > limit)
		mss_write(skb, l4, length, mss, bpf_htons(limit));
}
