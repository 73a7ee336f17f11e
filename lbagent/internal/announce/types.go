// SPDX-License-Identifier: Apache-2.0

// Package announce decides which VIPs this node announces to which peers. It
// is pure.
package announce

import (
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/api/desired"
)

// Route is a VIP, or an aggregate of VIPs, as it is announced to one peer.
type Route struct {
	// Prefix is the VIP as a /32 or /128, or the aggregate.
	Prefix netip.Prefix
	// NextHop is this node's address towards the peer: of the prefix's family, or IPv6.
	NextHop          netip.Addr
	Communities      []uint32
	LargeCommunities [][3]uint32
	// ExtendedCommunities are those of autonomous systems (RFC 4360, RFC 5668).
	ExtendedCommunities []desired.ExtendedCommunity
	// MED is nil where none is sent (RFC 4271, section 5.1.4).
	MED *uint32
	// Prepend is how often the node's system precedes the path besides the once of every
	// external session. It is 0 within one autonomous system.
	Prepend uint8
	// LocalPreference is nil where it is not set; it is sent in sessions
	// within one autonomous system only (RFC 4271, section 5.1.5).
	LocalPreference *uint32
	// Weight is against those of other nodes, for the link bandwidth community; without it,
	// which is 0, the community is not sent.
	Weight uint32
}

// Equal reports whether two say the same.
func (r *Route) Equal(other *Route) bool {
	same := func(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }
	return r.Prefix == other.Prefix && r.NextHop == other.NextHop && r.Prepend == other.Prepend && r.Weight == other.Weight &&
		same(r.LocalPreference, other.LocalPreference) && same(r.MED, other.MED) &&
		slices.Equal(r.Communities, other.Communities) &&
		slices.Equal(r.LargeCommunities, other.LargeCommunities) &&
		slices.Equal(r.ExtendedCommunities, other.ExtendedCommunities)
}

// Routes are the routes by the name of the LBPeer, each list sorted by prefix.
type Routes map[string][]Route

// Decision says, for a VIP that this node holds, where it is announced to or
// why it is not.
type Decision struct {
	VIP   netip.Addr
	Peers []string
	// Interfaces are those on which this node answers for the VIP, by ARP or Neighbor Discovery.
	Interfaces []string
	// Elsewhere is true where it is another node that does.
	Elsewhere bool
	// Reason is one word, Message a sentence; both are empty where Peers or Interfaces is
	// not.
	Reason  string
	Message string
}

func (d *Decision) equals(other *Decision) bool {
	return d.VIP == other.VIP && d.Reason == other.Reason && d.Message == other.Message && slices.Equal(d.Peers, other.Peers) &&
		slices.Equal(d.Interfaces, other.Interfaces) && d.Elsewhere == other.Elsewhere
}
