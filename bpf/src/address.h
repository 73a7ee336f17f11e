/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>

#include "types.h"

static __always_inline void address_set_ipv4(struct address *address, __be32 ipv4)
{
	address->word[0] = 0;
	address->word[1] = 0;
	address->word[2] = bpf_htonl(0xffff);
	address->word[3] = ipv4;
}

static __always_inline void address_set_ipv6(struct address *address, const struct in6_addr *ipv6)
{
	address->word[0] = ipv6->in6_u.u6_addr32[0];
	address->word[1] = ipv6->in6_u.u6_addr32[1];
	address->word[2] = ipv6->in6_u.u6_addr32[2];
	address->word[3] = ipv6->in6_u.u6_addr32[3];
}

static __always_inline int address_is_zero(const struct address *address)
{
	return !(address->word[0] | address->word[1] | address->word[2] | address->word[3]);
}

static __always_inline int address_equal(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}
