/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "drop_reason.h"

/* Each step returns an XDP action or an internal verdict. The internal ones are turned into
 * actions at the end of the program (finish.h): there the packet and its frontend are at
 * hand, and most of the stack is free again. All functions of a call chain share 512 bytes;
 * stack_test.go allows 400.
 */

/* For another path: datapath.c calls it once this one has returned. */
#define VERDICT_FULL_PATH -1
#define VERDICT_SLOW_PATH -2

/* Plus the reason to drop the packet. */
#define VERDICT_DROP 0x100
/* This node serves the packet. */
#define VERDICT_STAGE2 0x1000
/* Plus what is known of its flow: enum flow_found. Stage 2 goes on with that. */
#define VERDICT_FLOW 0x2000
/* Plus the id of the node to encapsulate it to. */
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
