//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "transmit_drop_maps.h"

/* Frames that the ingress program sent but a driver rejected. Drivers transmit after the program
 * has returned, and the kernel reports failures of all XDP programs by tracepoints
 * (include/trace/events/xdp.h).
 */

char _license[] SEC("license") = "GPL";

/* Id of the ingress program and inode of the uplinks' network namespace. Set by the loader. */
volatile const __u32 ingress_program;
volatile const __u32 network_namespace;

/* CO-RE definitions of kernel types. */
struct bpf_prog_aux {
	__u32 id;
} __attribute__((preserve_access_index));

struct bpf_prog {
	struct bpf_prog_aux *aux;
} __attribute__((preserve_access_index));

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

/* Atomic, because these programs are preemptible. */
static __always_inline void count_tx_drops(__u32 reason, __u32 ifindex, __u32 frames)
{
	struct transmit_drops *uplink = bpf_map_lookup_elem(&uplink_tx_drops, &ifindex);
	__u64 *count = bpf_map_lookup_elem(&drop_counts, &reason);

	if (count)
		__sync_fetch_and_add(count, frames);
	if (uplink)
		__sync_fetch_and_add(reason == DROP_XDP_TX ? &uplink->transmit : &uplink->redirect,
				     frames);
}

static __always_inline int is_ours(const struct bpf_prog *program)
{
	return BPF_CORE_READ(program, aux, id) == ingress_program;
}

/* xdp_exception(device, program, action): e.g. the driver's ring was full on XDP_TX. */
SEC("raw_tracepoint/xdp_exception")
int on_xdp_exception(struct bpf_raw_tracepoint_args *ctx)
{
	const struct net_device *device = (void *)ctx->args[0];

	if ((__u32)ctx->args[2] == XDP_TX && is_ours((void *)ctx->args[1]))
		count_tx_drops(DROP_XDP_TX, BPF_CORE_READ(device, ifindex), 1);
	return 0;
}

/* xdp_redirect_err(device, program, target, error, map type, map, index) */
SEC("raw_tracepoint/xdp_redirect_err")
int on_xdp_redirect_err(struct bpf_raw_tracepoint_args *ctx)
{
	if (is_ours((void *)ctx->args[1]))
		count_tx_drops(DROP_XDP_REDIRECT, ctx->args[6], 1);
	return 0;
}

/* For tracepoints that lack the program. */
static __always_inline void count_device_drops(__u32 reason, const struct net_device *device,
					       int frames)
{
	__u32 ifindex;

	if (frames <= 0 || BPF_CORE_READ(device, nd_net.net, ns.inum) != network_namespace)
		return;
	ifindex = BPF_CORE_READ(device, ifindex);
	if (bpf_map_lookup_elem(&uplink_tx_drops, &ifindex))
		count_tx_drops(reason, ifindex, frames);
}

/* xdp_bulk_tx(device, sent, drops, error): veth rejected some of the XDP_TX frames. */
SEC("raw_tracepoint/xdp_bulk_tx")
int on_xdp_bulk_tx(struct bpf_raw_tracepoint_args *ctx)
{
	count_device_drops(DROP_XDP_TX, (void *)ctx->args[0], ctx->args[2]);
	return 0;
}

/* xdp_devmap_xmit(from, to, sent, drops, error): the driver rejected redirected frames. */
SEC("raw_tracepoint/xdp_devmap_xmit")
int on_xdp_devmap_xmit(struct bpf_raw_tracepoint_args *ctx)
{
	count_device_drops(DROP_XDP_REDIRECT, (void *)ctx->args[1], ctx->args[3]);
	return 0;
}
