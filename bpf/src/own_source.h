/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "chain.h"
#include "path.h"
#include "settings.h"
#include "verdict.h"

/* Packets whose client is this very node: its own process, or a pod that the CNI masquerades. They
 * left by an uplink, because nothing on the node translates the VIP, and came back. No endpoint
 * of this node can serve them. The stack takes no IPv4 packet with an own address as source, and
 * the reply would not pass the egress program. So another node serves them.
 */

static __always_inline int is_from_self(const struct self *self, const struct flow *flow)
{
	if (flow->family == ADDRESS_FAMILY_IPV4)
		return self->ipv4 && self->ipv4 == flow->client.word[3];
	return !address_is_zero(&self->ipv6) && address_equal(&self->ipv6, &flow->client);
}

/* The next node of the chain becomes the chooser, for all packets of the flow alike. None is asked
 * after it, in no zone: such packets can be spoofed, and one must not become many. Where the
 * chooser is another node already, this one was only asked: the packet goes on as at a node that
 * does not know it.
 */
static __always_inline int send_elsewhere(struct packet *packet, const struct self *self,
					  const struct frontend *frontend)
{
	int next;

	if (other_chooser(packet, self->id)) {
		next = chain_walk(packet, self, frontend);
	} else {
		next = chain_next(packet, self->id);
		packet->path = path_with(packet->path, PATH_CHOOSER, next) &
			       ~(PATH_CHAIN | PATH_RANKED | PATH_FINAL);
		packet->zone_steps = ZONES;
	}
	return next > 0 ? send_to(next) : drop(DROP_OWN_SOURCE);
}
