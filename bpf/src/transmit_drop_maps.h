/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "consts.h"
#include "drop_reason.h"

/* Maps shared by the data plane and the programs of transmit_drops.c. */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_REASONS);
	__type(key, enum drop_reason);
	__type(value, __u64);
} drop_counts SEC(".maps");

/* Frames rejected by drivers, by egress interface. They are also in drop_counts. */
struct transmit_drops {
	__u64 transmit;
	__u64 redirect;
};

/* The agent writes the keys: uplinks, their lower devices and bond members. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, UPLINKS);
	__type(key, __u32);
	__type(value, struct transmit_drops);
} uplink_tx_drops SEC(".maps");
