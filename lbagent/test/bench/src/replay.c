//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */

/* Repeats one program under test. Before each pass the frame is put back: its start
 * and length, its headers, and the client of the next flow. Plain repetition would
 * show the program its own output, an already encapsulated packet, from the
 * second pass on. The cost of putting back is the same for every program.
 */

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

#define HEADER_WORDS 20

/* What is written, set by the loader. Dead branches cost nothing: the kernel removes them. */
volatile const __u64 header[HEADER_WORDS];
/* Bytes; a multiple of 8. */
volatile const __u32 frame_length;
/* Flows before the first one comes again. Zero: each pass has a random client. */
volatile const __u32 flow_count = 1;
/* Where the lower 16 bits of the client's address and its port stand. */
volatile const __u32 address_offset, port_offset;

#define FIRST_PORT 1024

/* The next flow, and the state of the random ones. One thread writes them. */
__u32 flow;
__u64 random = 88172645463325252;

/* The program under test. A map of programs is for one type of them. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ingress_target SEC(".maps"), egress_target SEC(".maps");

/* The number of the next flow: the lower half goes into the address, the rest into
 * the port.
 */
static __always_inline __u32 next_flow(void)
{
	__u32 current = flow;

	if (!flow_count) {
		/* Marsaglia's xorshift64. */
		__u64 x = random;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		random = x;
		return x >> 16;
	}
	flow = current + 1 < flow_count ? current + 1 : 0;
	return current;
}

/* data is followed by frame_length bytes. */
static __always_inline void write_headers(void *data)
{
	const __u32 length = frame_length;
	__u32 number = next_flow();

#pragma unroll
	for (int i = 0; i < HEADER_WORDS; i++) {
		if (i * 8 < length)
			((__u64 *)data)[i] = header[i];
	}
	*(__be16 *)(data + address_offset) = bpf_htons(number);
	*(__be16 *)(data + port_offset) = bpf_htons(FIRST_PORT + (number >> 16));
}

/* Bytes between two places of the frame. The verifier lets packet pointers be subtracted in
 * 64 bits only, and the compiler would take 32 where these are enough.
 */
static __always_inline long distance(const void *from, const void *to)
{
	long bytes = to - from;

	asm volatile("" : "+r"(bytes));
	return bytes;
}

SEC("xdp.frags")
int replay_xdp(struct xdp_md *ctx)
{
	const __u32 length = frame_length;
	long meta = distance((void *)(long)ctx->data_meta, (void *)(long)ctx->data);
	long now = distance((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	if (meta && bpf_xdp_adjust_meta(ctx, meta))
		return XDP_ABORTED;
	if (bpf_xdp_adjust_head(ctx, now - length))
		return XDP_ABORTED;
	if ((void *)(long)ctx->data + length > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	write_headers((void *)(long)ctx->data);
	bpf_tail_call(ctx, &ingress_target, 0);
	return XDP_ABORTED;
}

#define NO_TARGET 99

SEC("tcx/egress")
int replay_egress(struct __sk_buff *skb)
{
	const __u32 length = frame_length;

	if ((void *)(long)skb->data + length > (void *)(long)skb->data_end)
		return NO_TARGET;
	write_headers((void *)(long)skb->data);
	bpf_tail_call(skb, &egress_target, 0);
	return NO_TARGET;
}
