/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "consts.h"
#include "types.h"

/* The path of a packet through the cluster: the nodes that may get it. From the top of its word: the
 * ingress node, the chooser and three nodes of the chain, as the lower 12 bits of their ids, the
 * role of the packet in two bits, and two flags. high has the upper bits of these ids in the same
 * order, two for each. It is zero while no node of a path has an id of more than 12 bits. Zero means
 * no node.
 *
 * The ingress node got the packet from the router. The chooser is the primary of the row: it
 * chooses an endpoint where no node knows the flow. The chain are the nodes to ask first, the
 * next one at the front.
 */
#define NODE_ID_LOW_BITS 12
#define NODE_ID_LOW 0xfffULL
#define NODE_ID_HIGH_BITS 2
#define NODE_ID_HIGH 3U

/* Places in the word. */
#define PATH_INGRESS 52
#define PATH_CHOOSER 40
/* The front of the chain. */
#define PATH_NEXT 28
#define PATH_CHAIN (((1ULL << 3 * NODE_ID_LOW_BITS) - 1) << PATH_FLAGS)
#define PATH_FLAGS 4

/* The upper bits of the id whose lower ones are at the place. */
#define PATH_HIGH(place) (((place) - PATH_FLAGS) / NODE_ID_LOW_BITS * NODE_ID_HIGH_BITS)
#define PATH_HIGH_ALL ((1U << 5 * NODE_ID_HIGH_BITS) - 1)
#define PATH_HIGH_CHAIN ((1U << 3 * NODE_ID_HIGH_BITS) - 1)

/* The flags. */
enum path_flag {
	/* The chain was filled by rank, because the row has no history. On the path without a chain of a
	 * packet that begins a flow: its sender's agent is silent (hand_on).
	 */
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

static __always_inline enum path_role path_role(struct path path)
{
	return path.word & PATH_ROLE;
}

static __always_inline struct path path_as(struct path path, enum path_role role)
{
	path.word = (path.word & ~PATH_ROLE) | role;
	return path;
}

static __always_inline struct path path_walking(struct path path)
{
	path.word |= PATH_WALK;
	return path;
}

/* Reports whether the ingress node knows where the flow is, or thinks so. */
static __always_inline int path_is_straight(struct path path)
{
	enum path_role role = path_role(path);

	return role == PATH_EXCEPTION || role == PATH_FINAL;
}

static __always_inline __u32 path_node(struct path path, int place)
{
	return (path.word >> place & NODE_ID_LOW) | (path.high >> PATH_HIGH(place) & NODE_ID_HIGH)
							    << NODE_ID_LOW_BITS;
}

static __always_inline struct path path_with(struct path path, int place, __u32 node)
{
	path.word = (path.word & ~(NODE_ID_LOW << place)) | (node & NODE_ID_LOW) << place;
	path.high = (path.high & ~(NODE_ID_HIGH << PATH_HIGH(place))) |
		    node >> NODE_ID_LOW_BITS << PATH_HIGH(place);
	return path;
}

/* The path with the chain of another one. The flags stay. */
static __always_inline struct path path_with_chain(struct path path, struct path other)
{
	path.word = (path.word & ~PATH_CHAIN) | (other.word & PATH_CHAIN);
	path.high = (path.high & ~PATH_HIGH_CHAIN) | (other.high & PATH_HIGH_CHAIN);
	return path;
}

/* The path without a chain. That was not filled by rank, then. */
static __always_inline struct path path_without_chain(struct path path)
{
	path.word &= ~(PATH_CHAIN | PATH_RANKED);
	path.high &= ~PATH_HIGH_CHAIN;
	return path;
}

static __always_inline int path_has_chain(struct path path)
{
	return path.word & PATH_CHAIN || path.high & PATH_HIGH_CHAIN;
}

/* The plain path to a chooser that asks nobody. */
static __always_inline struct path path_to(struct path path, __u32 chooser)
{
	return path_as(path_without_chain(path_with(path, PATH_CHOOSER, chooser)), PATH_PLAIN);
}

/* Leaves so many nodes in the chain. The flags stay. */
static __always_inline struct path path_cut(struct path path, int length)
{
	int rest = length < CHAIN_LENGTH ? CHAIN_LENGTH - length : 0;

	path.word &= ~PATH_CHAIN | PATH_CHAIN << rest * NODE_ID_LOW_BITS;
	path.high &= ~PATH_HIGH_CHAIN | PATH_HIGH_CHAIN << rest * NODE_ID_HIGH_BITS;
	return path;
}

/* Takes the first node off the chain. The flags stay. */
static __always_inline struct path path_advance(struct path path)
{
	path.word = (path.word & ~PATH_CHAIN) |
		    ((path.word & PATH_CHAIN) << NODE_ID_LOW_BITS & PATH_CHAIN);
	path.high = (path.high & ~PATH_HIGH_CHAIN) |
		    ((path.high & PATH_HIGH_CHAIN) << NODE_ID_HIGH_BITS & PATH_HIGH_CHAIN);
	return path;
}
