/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "consts.h"

/* Wraps after 49 days at 1000 Hz, so timestamps are only subtracted. */
static __always_inline __u32 clock_now(void)
{
	return (__u32)bpf_jiffies64();
}

static __always_inline int clock_passed(__u32 since, __u32 seconds)
{
	return clock_now() - since >= seconds * ticks_per_second;
}
