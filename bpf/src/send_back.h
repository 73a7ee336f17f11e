/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/if_ether.h>

#include "next_hop.h"
#include "types.h"
#include "verdict.h"

/* Sends a frame back to the router. If it came from a node, the kernel resolves the next hop. */
static __always_inline int send_back(struct xdp_md *ctx, const struct self *self, int from_node)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u8 address[ETH_ALEN];

	if (from_node || self->flags & (SELF_NO_TRANSMIT | SELF_VLAN_STRIPPED))
		return pass_to_kernel(ctx, INGRESS_IFINDEX);
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return drop(DROP_HEADROOM);
	__builtin_memcpy(address, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, address, ETH_ALEN);
	return XDP_TX;
}
