/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#include "consts.h"
#include "types.h"

/* Path of a packet through the cluster. From the most significant bits of word: ingress node,
 * chooser and three nodes of the chain (lower 12 bits of their ids), the role (two bits), and two
 * flags. high has the upper two bits of these ids in the same order, and is 0 in clusters without
 * longer ids. Id 0 is no node.
 *
 * The ingress node got the packet from the router. The chooser, the row's primary, selects an
 * endpoint if no node knows the flow. The nodes of the chain are queried first, in order.
 */
#define NODE_ID_LOW_BITS 12
#define NODE_ID_LOW 0xfffULL
#define NODE_ID_HIGH_BITS 2
#define NODE_ID_HIGH 3U

/* Shifts of ids in the word. */
#define PATH_INGRESS 52
#define PATH_CHOOSER 40
/* First node of the chain. */
#define PATH_NEXT 28
#define PATH_CHAIN (((1ULL << 3 * NODE_ID_LOW_BITS) - 1) << PATH_FLAGS)
#define PATH_FLAGS 4

/* Shift of an id's upper bits in high. */
#define PATH_HIGH(place) (((place) - PATH_FLAGS) / NODE_ID_LOW_BITS * NODE_ID_HIGH_BITS)
#define PATH_HIGH_ALL ((1U << 5 * NODE_ID_HIGH_BITS) - 1)
#define PATH_HIGH_CHAIN ((1U << 3 * NODE_ID_HIGH_BITS) - 1)

enum path_flag {
	/* Chain by rank, of a row without history. Without a chain: see delegate. */
	PATH_RANKED = 1,
	/* Datagrams follow the chain, too. */
	PATH_LOOKUP = 2,
};

#define PATH_ROLE (3ULL << 2)

enum path_role {
	/* Routed by row. A node that owns the flow redirects the ingress node. */
	PATH_PLAIN = 0,
	/* Sent by an override of the ingress node to the owner of the flow. */
	PATH_OVERRIDE = 1 << 2,
	/* Redirect to the ingress node: the chooser owns the flow, or if 0, the sender does not.
	 */
	PATH_REDIRECT = 2 << 2,
	/* Sent to the owner after a redirect. No further redirect is sent. */
	PATH_REDIRECTED = 3 << 2,
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

static __always_inline struct path path_with_lookup(struct path path)
{
	path.word |= PATH_LOOKUP;
	return path;
}

/* Reports whether the ingress node has selected the flow's owner. */
static __always_inline int path_is_straight(struct path path)
{
	enum path_role role = path_role(path);

	return role == PATH_OVERRIDE || role == PATH_REDIRECTED;
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

/* Replaces the chain; the flags are retained. */
static __always_inline struct path path_with_chain(struct path path, struct path other)
{
	path.word = (path.word & ~PATH_CHAIN) | (other.word & PATH_CHAIN);
	path.high = (path.high & ~PATH_HIGH_CHAIN) | (other.high & PATH_HIGH_CHAIN);
	return path;
}

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

/* Plain path to a chooser, without a chain. */
static __always_inline struct path path_to(struct path path, __u32 chooser)
{
	return path_as(path_without_chain(path_with(path, PATH_CHOOSER, chooser)), PATH_PLAIN);
}

/* Truncates the chain to length nodes; the flags are retained. */
static __always_inline struct path path_cut(struct path path, int length)
{
	int rest = length < CHAIN_LENGTH ? CHAIN_LENGTH - length : 0;

	path.word &= ~PATH_CHAIN | PATH_CHAIN << rest * NODE_ID_LOW_BITS;
	path.high &= ~PATH_HIGH_CHAIN | PATH_HIGH_CHAIN << rest * NODE_ID_HIGH_BITS;
	return path;
}

/* Removes the first node of the chain; the flags are retained. */
static __always_inline struct path path_advance(struct path path)
{
	path.word = (path.word & ~PATH_CHAIN) |
		    ((path.word & PATH_CHAIN) << NODE_ID_LOW_BITS & PATH_CHAIN);
	path.high = (path.high & ~PATH_HIGH_CHAIN) |
		    ((path.high & PATH_HIGH_CHAIN) << NODE_ID_HIGH_BITS & PATH_HIGH_CHAIN);
	return path;
}
