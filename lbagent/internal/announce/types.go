// SPDX-License-Identifier: Apache-2.0

// Package announce decides which VIPs this node announces to which peers. It
// is pure.
package announce

import (
	"net/netip"
)

// Route is one VIP as it is announced to one peer.
type Route struct {
	// Prefix is the VIP as a /32 or /128.
	Prefix netip.Prefix
	// NextHop is this node's address of the prefix's family.
	NextHop          netip.Addr
	Communities      []uint32
	LargeCommunities [][3]uint32
	// LocalPreference is nil where it is not set; it is sent in sessions
	// within one autonomous system only (RFC 4271, section 5.1.5).
	LocalPreference *uint32
}

// Routes are the routes by the name of the LBPeer, each list sorted by prefix.
type Routes map[string][]Route

// Decision says, for a VIP that this node holds, where it is announced to or
// why it is not.
type Decision struct {
	VIP   netip.Addr
	Peers []string
	// Reason is one word, Message a sentence; both are empty where Peers is
	// not.
	Reason  string
	Message string
}
