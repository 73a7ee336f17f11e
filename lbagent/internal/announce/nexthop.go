// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// nextHop is the BGP next hop of a VIP's route to a peer: the node's address of the VIP's family,
// whatever the family of the session, or its IPv6 address for a peer with extended next hops (RFC
// 8950). It is invalid where the node has none; the VIP is not announced to that peer then.
func nextHop(m *model.Model, peer *model.Peer, vip netip.Addr) netip.Addr {
	hops := m.NextHops[peer.Name]
	if vip.Is4() && !peer.ExtendedNextHop {
		return hops.IPv4
	}
	return hops.IPv6
}
