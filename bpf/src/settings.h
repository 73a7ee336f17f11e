/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "address.h"
#include "maps.h"

static __always_inline struct self *settings_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline struct tunnel_policy *tunnel_policy_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&tunnel_policies, &zero);
}

/* Returns the number of the tag key, or 0. */
static __always_inline __u32 self_key(const struct self *self)
{
	return self->flags / SELF_KEY;
}

/* Reports whether the destination is this node's tunnel address. */
static __always_inline int is_self(const struct self *self, const struct flow *outer)
{
	if (outer->family == ADDRESS_FAMILY_IPV4)
		return self->ipv4 && self->ipv4 == outer->vip.word[3];
	return !address_is_zero(&self->ipv6) && address_equal(&self->ipv6, &outer->vip);
}

static __always_inline int is_from_self(const struct self *self, const struct flow *flow)
{
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return self->ipv4 && self->ipv4 == flow->client.word[3];
	return !address_is_zero(&self->ipv6) && address_equal(&self->ipv6, &flow->client);
}
