// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// nextHop returns the BGP next hop of a VIP's route: the node's address of the VIP's family, or its IPv6
// address for peers with extended next hops (RFC 8950). An invalid result means that the VIP is not
// announced to the peer.
func nextHop(m *model.Model, peer *model.Peer, vip netip.Addr) netip.Addr {
	hops := m.NextHops[peer.Name]
	if vip.Is4() && !peer.ExtendedNextHop {
		return hops.IPv4
	}
	return hops.IPv6
}
