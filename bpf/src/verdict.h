/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "drop_reason.h"

/* Stages return an XDP action or an internal verdict, which finish.h turns into an action. There
 * most of the stack is free again: all functions of a call chain share 512 bytes, and stack_test.go
 * allows 400.
 */

/* Continue with another path, called by datapath.c. */
#define VERDICT_FULL_PATH -1
#define VERDICT_SLOW_PATH -2

/* Plus the drop reason. */
#define VERDICT_DROP 0x100
/* This node serves the packet. */
#define VERDICT_STAGE2 0x1000
/* Plus enum flow_found; continued by stage 2. */
#define VERDICT_FLOW 0x2000
/* Plus the id of the destination node. */
#define VERDICT_SEND 0x10000

static __always_inline int drop(enum drop_reason reason)
{
	return VERDICT_DROP + reason;
}

static __always_inline int serve_here(void)
{
	return VERDICT_STAGE2;
}

static __always_inline int send_to(__u32 node)
{
	return VERDICT_SEND + node;
}
