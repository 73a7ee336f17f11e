/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

#include "types.h"

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
	/* A datagram, too, is asked for along the chain. */
	WAY_ASK = 2,
	/* The origin has sent it to the node that it knows, or was told, to hold the flow. */
	WAY_TOLD = 4,
	/* Back to the origin, from the node that the chooser names: it holds the flow. Where that
	 * is zero, the sender does not, though the origin thought so.
	 */
	WAY_HELD = 8,
	/* Nobody is told any more. */
	WAY_FINAL = WAY_TOLD | WAY_HELD,
};

/* A row has in the place of the origin how many places of its chain are of former owners,
 * and whether there is more to know of it in row_marks. That bit the programs
 * set and clear by themselves.
 */
#define ROW_HISTORY (3ULL << WAY_ORIGIN)
#define ROW_MARKED (1ULL << 63)
#define ROW_WAY ((1ULL << WAY_ORIGIN) - 1)

static __always_inline __u32 way_node(__u64 way, int place)
{
	return way >> place & NODE_ID_MASK;
}

static __always_inline __u64 way_with(__u64 way, int place, __u32 node)
{
	return (way & ~(NODE_ID_MASK << place)) | (__u64)node << place;
}

/* The way of a packet that this node sends, or keeps, by a row. */
static __always_inline __u64 way_by_row(__u64 row, const struct self *self)
{
	return (row & ROW_WAY) | (__u64)self->id << WAY_ORIGIN;
}

/* The way of a packet for which this node chooses instead of the row's primary: that one
 * becomes the first of the chain.
 */
static __always_inline __u64 way_behind(__u64 row, const struct self *self)
{
	return (row >> NODE_ID_BITS & WAY_CHAIN) | (__u64)self->id << WAY_ORIGIN |
	       (__u64)self->id << WAY_CHOOSER;
}

/* Without the next one of the chain. */
static __always_inline __u64 way_advance(__u64 way)
{
	return (way & ~WAY_CHAIN) | ((way & WAY_CHAIN) << NODE_ID_BITS & WAY_CHAIN);
}
