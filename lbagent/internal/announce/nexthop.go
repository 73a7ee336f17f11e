// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
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

// WithoutNextHop returns the address families that peer configures and for which the node has no next hop.
func WithoutNextHop(m *model.Model, peer *model.Peer) (families []millracev1beta1.AddressFamily) {
	if peer.IPv4 && !nextHop(m, peer, netip.IPv4Unspecified()).IsValid() {
		families = append(families, millracev1beta1.FamilyIPv4)
	}
	if peer.IPv6 && !nextHop(m, peer, netip.IPv6Unspecified()).IsValid() {
		families = append(families, millracev1beta1.FamilyIPv6)
	}
	return families
}
