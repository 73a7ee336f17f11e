/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "consts.h"
#include "drop_reason.h"

/* The maps that the data plane and the programs of losses.c share. */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_REASONS);
	__type(key, enum drop_reason);
	__type(value, __u64);
} drop_counts SEC(".maps");

/* Frames that drivers did not take, by the index of the interface that they should leave by. They
 * are among the drop_counts, too.
 */
struct unsent {
	__u64 transmit;
	__u64 redirect;
};

/* The agent writes the keys: uplinks, what is below them, and the members of bonds. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, UPLINKS);
	__type(key, __u32);
	__type(value, struct unsent);
} uplink_losses SEC(".maps");
