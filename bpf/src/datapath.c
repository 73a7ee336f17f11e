//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "established_filter.h"
#include "override_sweep.h"
#include "fast_path.h"
#include "finish.h"
#include "flow_count.h"
#include "full_path.h"
#include "nat_exempt.h"
#include "reverse.h"
#include "row_update.h"
#include "slow_path.h"
#include "egress_filter.h"

char _license[] SEC("license") = "GPL";

/* Adds types without a map to the BTF, for bpf2go. */
const enum shape *_shape __attribute__((unused));
const enum reserved_id *_reserved_id __attribute__((unused));
const enum self_flag *_self_flag __attribute__((unused));
const enum frontend_flag *_frontend_flag __attribute__((unused));
const enum connection_flag *_connection_flag __attribute__((unused));
const enum reverse_flag *_reverse_flag __attribute__((unused));
const enum service_proxy_mode *_service_proxy_mode __attribute__((unused));
const enum uplink_flag *_uplink_flag __attribute__((unused));
const enum overhead *_overhead __attribute__((unused));
const enum tunnel_policy_flag *_trust_flag __attribute__((unused));
const enum node_flag *_node_flag __attribute__((unused));
const enum probe_kind *_probe_kind __attribute__((unused));
const enum validation *_proof __attribute__((unused));
const enum quota_kind *_quota_kind __attribute__((unused));
const struct probe *_probe __attribute__((unused));
const struct kernel_redirect *_handover __attribute__((unused));
const struct rows_write *_rows_write __attribute__((unused));
const struct rows_read *_rows_read __attribute__((unused));
const struct override_sweep *_override_sweep __attribute__((unused));
const enum complete_copy *_whole_copy __attribute__((unused));
const enum trace_step *_trace_step __attribute__((unused));
const struct drop_sample *_drop_sample __attribute__((unused));

/* Packets that arrive on an uplink. */
SEC("xdp.frags")
int ingress(struct xdp_md *ctx)
{
	struct frontend *frontend = NULL;
	int verdict, is_slow;

	if (!tracing) {
		verdict = fast_path(ctx, &frontend);
		if (verdict != VERDICT_FULL_PATH)
			return verdict;
	}
	verdict = full_path(ctx, frontend);
	is_slow = verdict == VERDICT_SLOW_PATH;
	if (is_slow)
		verdict = slow_path(ctx);
	verdict = finish(ctx, verdict);
	return is_slow ? slow_leave(ctx, verdict) : verdict;
}

/* TC_ACT_UNSPEC is TCX_NEXT: other tcx programs see the packet. */

/* Frames that an uplink passes to the stack. Those with struct kernel_redirect are redirected. */
SEC("tcx/ingress")
int redirect_neigh(struct __sk_buff *skb)
{
	struct kernel_redirect *note = (void *)(long)skb->data_meta;
	__u32 ifindex;

	if ((void *)(note + 1) > (void *)(long)skb->data || note->magic != KERNEL_REDIRECT_MAGIC)
		return TC_ACT_UNSPEC;
	ifindex = note->ifindex == INGRESS_IFINDEX ? uplink_of(skb) : note->ifindex;
	/* On veth the metadata stays with the frame; invalidate it for the other node. */
	note->magic = 0;
	mark_sent(skb);
	/* An offloaded VLAN tag belongs to the arrival interface. */
	if (!ifindex || (skb->vlan_present && bpf_skb_vlan_pop(skb))) {
		record_reply_drop(skb, DROP_XDP_METADATA);
		return TC_ACT_SHOT;
	}
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

/* Packets that leave by an uplink. */
SEC("tcx/egress")
int egress(struct __sk_buff *skb)
{
	long failed = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		failed = reply_ipv4(skb);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		failed = reply_ipv6(skb);
	else if (is_vlan(skb->protocol))
		failed = filter_egress(skb);
	if (!failed)
		return TC_ACT_UNSPEC;
	record_reply_drop(skb, failed > 0 ? failed : DROP_REPLY_REWRITE);
	return TC_ACT_SHOT;
}

/* xt_bpf filter for new connections before SNAT. Returns 1 to retain the source address. */
SEC("socket")
int nat_exempt(struct __sk_buff *skb)
{
	return exempt_from_nat(skb);
}

/* The following programs are run by the agent (BPF_PROG_RUN). */

/* Returns the number of rows. */
SEC("syscall")
int write_rows(struct rows_write *request)
{
	struct rows_write write = *request;

	if (write.fresh)
		bpf_loop(write.count / ROW_GROUP, row_group_clear, &write, 0);
	return bpf_loop(write.count, row_write, &write, 0);
}

SEC("syscall")
int read_rows(struct rows_read *request)
{
	struct rows_read read = *request;

	return bpf_loop(read.count, row_read, &read, 0);
}

SEC("syscall")
int write_endpoint_rows(struct rows_read *request)
{
	struct rows_read write = *request;

	return bpf_loop(write.count, endpoint_row_write, &write, 0);
}

SEC("syscall")
int read_endpoint_rows(struct rows_read *request)
{
	struct rows_read read = *request;

	return bpf_loop(read.count, endpoint_row_read, &read, 0);
}

/* Sweeps words of the filter (override_sweep.h). Returns the number of words. */
SEC("syscall")
int sweep_overrides(struct override_sweep *request)
{
	struct override_sweep sweep = *request;
	long swept;

	if (!sweep.since)
		sweep.since = stamp_now();
	swept = bpf_loop(sweep.count, sweep_word, &sweep, 0);
	*request = sweep;
	return swept;
}

/* Clears flags of rows after all words. Returns the number of rows. */
SEC("syscall")
int clear_row_flags(struct override_sweep *request)
{
	struct override_sweep sweep = *request;
	long swept = bpf_loop(sweep.count, clear_row_flag, &sweep, 0);

	*request = sweep;
	return swept;
}

/* Adds clients of established connections to the filter. Returns their number. */
SEC("syscall")
int add_established(__u32 *count)
{
	return bpf_loop(*count, filter_add_step, NULL, 0);
}

SEC("syscall")
int renew_lease(void *unused)
{
	__u32 zero = 0;
	__u64 *beat = bpf_map_lookup_elem(&hop_lease, &zero);

	if (beat)
		*beat = bpf_jiffies64();
	return 0;
}

SEC("syscall")
int count_connections(struct flow_counts *result)
{
	struct flow_counts counts = {};

	bpf_for_each_map_elem(&connections4, count_established4, &counts, 0);
	bpf_for_each_map_elem(&connections6, count_established6, &counts, 0);
	bpf_for_each_map_elem(&datagrams4, count_established4, &counts, 0);
	bpf_for_each_map_elem(&datagrams6, count_established6, &counts, 0);
	bpf_for_each_map_elem(&overflow_conn, count_established6, &counts, 0);
	bpf_for_each_map_elem(&overflow_data, count_established6, &counts, 0);
	bpf_for_each_map_elem(&half_open_flows, count_half_open, &counts, 0);
	*result = counts;
	return 0;
}
