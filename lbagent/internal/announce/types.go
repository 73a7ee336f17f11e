// SPDX-License-Identifier: Apache-2.0

// Package announce computes the VIPs that this node announces to its peers and on its links. It is pure.
package announce

import (
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/api/desired"
)

// Route is the route to a VIP, or to an aggregate of VIPs, for one peer.
type Route struct {
	// Prefix is the VIP as /32 or /128, or the aggregate.
	Prefix           netip.Prefix
	NextHop          netip.Addr
	Communities      []uint32
	LargeCommunities [][3]uint32
	// ExtendedCommunities are AS-specific (RFC 4360, RFC 5668).
	ExtendedCommunities []desired.ExtendedCommunity
	// MED is nil if it is not sent (RFC 4271, section 5.1.4).
	MED *uint32
	// Prepend is the number of additional AS path entries of the node's AS; 0 for internal peers.
	Prepend uint8
	// LocalPreference is nil if unset. It is sent to internal peers only (RFC 4271, section 5.1.5).
	LocalPreference *uint32
	// Weight is the value of the link bandwidth community; 0 omits the community.
	Weight uint32
}

// Equal reports whether two routes have equal attributes.
func (r *Route) Equal(other *Route) bool {
	same := func(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }
	return r.Prefix == other.Prefix && r.NextHop == other.NextHop && r.Prepend == other.Prepend && r.Weight == other.Weight &&
		same(r.LocalPreference, other.LocalPreference) && same(r.MED, other.MED) &&
		slices.Equal(r.Communities, other.Communities) &&
		slices.Equal(r.LargeCommunities, other.LargeCommunities) &&
		slices.Equal(r.ExtendedCommunities, other.ExtendedCommunities)
}

// Routes maps an LBPeer to its routes, sorted by prefix.
type Routes map[string][]Route

// Decision is the peers and interfaces that announce a VIP, or the reason why none does.
type Decision struct {
	VIP   netip.Addr
	Peers []string
	// Interfaces answer ARP and Neighbor Discovery for the VIP. Elsewhere is true if another node does.
	Interfaces []string
	Elsewhere  bool
	// Reason is a CamelCase word and Message a sentence; both are empty if Peers or Interfaces is not.
	Reason  string
	Message string
}

func (d *Decision) equals(other *Decision) bool {
	return d.VIP == other.VIP && d.Reason == other.Reason && d.Message == other.Message && slices.Equal(d.Peers, other.Peers) &&
		slices.Equal(d.Interfaces, other.Interfaces) && d.Elsewhere == other.Elsewhere
}
