//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "census.h"
#include "any.h"
#include "plain.h"
#include "related.h"
#include "reverse.h"
#include "rows.h"
#include "slow.h"

char _license[] SEC("license") = "GPL";

/* Types that no map names reach the loader by a variable of theirs. */
const enum shape *_shape __attribute__((unused));
const enum self_flag *_self_flag __attribute__((unused));
const enum frontend_flag *_frontend_flag __attribute__((unused));
const enum connection_flag *_connection_flag __attribute__((unused));
const enum reverse_flag *_reverse_flag __attribute__((unused));
const enum uplink_flag *_uplink_flag __attribute__((unused));
const enum overhead *_overhead __attribute__((unused));
const struct handover *_handover __attribute__((unused));
const struct rows_write *_rows_write __attribute__((unused));
const enum trace_step *_trace_step __attribute__((unused));
const struct drop_sample *_drop_sample __attribute__((unused));

/* Every packet that comes in from an uplink. */
SEC("xdp.frags")
int ingress(struct xdp_md *ctx)
{
	struct frontend *frontend = NULL;
	int verdict;

	/* The straight way leads nowhere else, and tells nothing. */
	if (!tracing) {
		verdict = plain(ctx, &frontend);
		if (verdict != NOT_PLAIN)
			return verdict;
	}
	verdict = any_packet(ctx, frontend);
	return verdict == SLOW_WAY ? slow_path(ctx) : verdict;
}

/* For both programs TC_ACT_UNSPEC is TCX_NEXT: other programs and the packet go on. */

/* What ingress handed to the kernel leaves again, with the next hop the kernel's. */
SEC("tcx/ingress")
int handed_over(struct __sk_buff *skb)
{
	struct handover *note = (void *)(long)skb->data_meta;
	__u32 ifindex;

	if ((void *)(note + 1) > (void *)(long)skb->data || note->magic != HANDOVER_MAGIC)
		return TC_ACT_UNSPEC;
	/* The tag that the frame came in with, where the card took it off, is not that of the
	 * interface by which it leaves.
	 */
	ifindex = note->ifindex;
	if (skb->vlan_present && bpf_skb_vlan_pop(skb)) {
		note_reply_drop(skb, DROP_HANDOVER);
		return TC_ACT_SHOT;
	}
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

/* Every packet that leaves by an uplink. */
SEC("tcx/egress")
int egress(struct __sk_buff *skb)
{
	long failed = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		failed = reply_ipv4(skb);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		failed = reply_ipv6(skb);
	if (!failed)
		return TC_ACT_UNSPEC;
	note_reply_drop(skb, DROP_REPLY_REWRITE);
	return TC_ACT_SHOT;
}

/* The programs below are run by the agent. */

/* Writes rows; returns how many. */
SEC("syscall")
int write_rows(struct rows_write *request)
{
	struct rows_write write = *request;

	return bpf_loop(write.count, row_write, &write, 0);
}

/* The agent lives and watches routes and neighbours: the prepared next hops are right. */
SEC("syscall")
int vouch(void *unused)
{
	__u32 zero = 0;
	__u64 *beat = bpf_map_lookup_elem(&heartbeat, &zero);

	if (beat)
		*beat = bpf_jiffies64();
	return 0;
}

SEC("syscall")
int count_connections(struct census *result)
{
	struct census census = {};

	bpf_for_each_map_elem(&connections4, census4, &census, 0);
	bpf_for_each_map_elem(&connections6, census6, &census, 0);
	bpf_for_each_map_elem(&datagrams4, census4, &census, 0);
	bpf_for_each_map_elem(&datagrams6, census6, &census, 0);
	bpf_for_each_map_elem(&half_open4, census_half_open4, &census, 0);
	bpf_for_each_map_elem(&half_open6, census_half_open6, &census, 0);
	*result = census;
	return 0;
}
