/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "consts.h"

/* The path of a packet through the cluster: the nodes that may get it, in 64 bits. From the
 * top: the ingress node, the chooser and three nodes of the chain, as ids of 12 bits each,
 * the role of the packet in two bits, and two flags. Zero means no node.
 *
 * The ingress node got the packet from the router. The chooser is the primary of the row: it
 * chooses an endpoint where no node knows the flow. The chain are the nodes to ask first, the
 * next one at the front.
 */
#define NODE_ID_BITS 12
#define NODE_ID_MASK 0xfffULL

#define PATH_INGRESS 52
#define PATH_CHOOSER 40
/* The front of the chain. */
#define PATH_NEXT 28
#define PATH_CHAIN (((1ULL << 3 * NODE_ID_BITS) - 1) << PATH_FLAGS)
#define PATH_FLAGS 4

/* The flags. */
enum path_flag {
	/* The chain was filled by rank, because the row has no history. */
	PATH_RANKED = 1,
	/* A datagram walks the chain, too. */
	PATH_WALK = 2,
};

/* The role: a field of two bits, above the flags. */
#define PATH_ROLE (3ULL << 2)

enum path_role {
	/* The packet goes by its row. Whoever holds the flow tells the ingress node. */
	PATH_PLAIN = 0,
	/* The ingress node sent it by an exception: to the node that holds the flow. */
	PATH_EXCEPTION = 1 << 2,
	/* A notice to the ingress node: the chooser, which sent it, holds the flow. With a zero
	 * chooser the sender does not hold it, though the ingress node has an exception.
	 */
	PATH_NOTICE = 2 << 2,
	/* What became of a notice: it goes to the holder. No further notice is sent. */
	PATH_FINAL = 3 << 2,
};

static __always_inline enum path_role path_role(__u64 path)
{
	return path & PATH_ROLE;
}

static __always_inline __u64 path_as(__u64 path, enum path_role role)
{
	return (path & ~PATH_ROLE) | role;
}

/* Reports whether the ingress node knows where the flow is, or thinks so. */
static __always_inline int path_is_straight(__u64 path)
{
	enum path_role role = path_role(path);

	return role == PATH_EXCEPTION || role == PATH_FINAL;
}

static __always_inline __u32 path_node(__u64 path, int place)
{
	return path >> place & NODE_ID_MASK;
}

static __always_inline __u64 path_with(__u64 path, int place, __u32 node)
{
	return (path & ~(NODE_ID_MASK << place)) | (__u64)node << place;
}

/* Leaves so many nodes in the chain. The flags stay. */
static __always_inline __u64 path_cut(__u64 path, int length)
{
	int rest = length < CHAIN_LENGTH ? CHAIN_LENGTH - length : 0;

	return path & (~PATH_CHAIN | PATH_CHAIN << rest * NODE_ID_BITS);
}

/* Takes the first node off the chain. The flags stay. */
static __always_inline __u64 path_advance(__u64 path)
{
	return (path & ~PATH_CHAIN) | ((path & PATH_CHAIN) << NODE_ID_BITS & PATH_CHAIN);
}
