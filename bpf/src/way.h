/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

/* The way of a packet through the cluster, in 64 bits. From the top: the origin, the
 * chooser and three nodes of the chain, as ids of 12 bits each, and four flags.
 *
 * The origin is the node that the router handed the packet to. The chooser is the primary
 * of the row, which chooses an endpoint where nobody knows the flow. The chain is
 * whom to ask before, next one first. Zero means nobody.
 */
#define NODE_ID_BITS 12
#define NODE_ID_MASK 0xfffULL

#define WAY_ORIGIN 52
#define WAY_CHOOSER 40
/* The next one of the chain. */
#define WAY_NEXT 28
#define WAY_CHAIN (((1ULL << 3 * NODE_ID_BITS) - 1) << WAY_FLAGS)
#define WAY_FLAGS 4

/* The flags. */
enum way_flag {
	/* The chain was filled by rank, for want of a history. */
	WAY_RANKED = 1,
};

/* A row has in the place of the origin, in the lowest two bits, how many places of
 * its chain are of former owners.
 */
#define ROW_HISTORY 52
#define ROW_WAY ((1ULL << WAY_ORIGIN) - 1)

static __always_inline __u32 way_node(__u64 way, int place)
{
	return way >> place & NODE_ID_MASK;
}

static __always_inline __u64 way_with(__u64 way, int place, __u32 node)
{
	return (way & ~(NODE_ID_MASK << place)) | (__u64)node << place;
}

/* Without the next one of the chain. */
static __always_inline __u64 way_advance(__u64 way)
{
	return (way & ~WAY_CHAIN) | ((way << NODE_ID_BITS) & WAY_CHAIN);
}
