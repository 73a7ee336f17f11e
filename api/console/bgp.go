// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"time"
)

// BGP is what a node's BGP sessions are, and what it announces in them.
type BGP struct {
	Node string `json:"node"`
	// Peers are the line of `bgp peers`, sorted by name.
	Peers []BGPPeer `json:"peers,omitempty"`
	// Routes are the line of `bgp routes`, sorted by prefix and peer.
	Routes []BGPRoute `json:"routes,omitempty"`
}

// BGPPeer is the session with one LBPeer.
type BGPPeer struct {
	// Peer is the name of the LBPeer.
	Peer    string     `json:"peer"`
	Address netip.Addr `json:"address"`
	// LocalAddress is the node's in the session; absent without a connection.
	LocalAddress netip.Addr `json:"localAddress,omitzero"`
	// State is that of RFC 4271, section 8.2.2. Since is when the session got into or out of
	// Established.
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
	// LastError is why the last session or attempt ended, at LastErrorTime. It stays while the
	// session is established again.
	LastError     string    `json:"lastError,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`
	// Flaps is how often the session was established and then lost, since the agent started.
	Flaps uint64 `json:"flaps"`
	// Families are those whose routes are announced: IPv4, IPv6.
	Families []string `json:"families,omitempty"`
	// RoutesSent is how many routes the peer is told, or will be once the session is established.
	RoutesSent int `json:"routesSent"`
	// RoutesAccepted is absent: BGP does not tell it, and the agent receives no BMP (RFC 8671).
	RoutesAccepted *int `json:"routesAccepted,omitempty"`
	// UpdatesSent and UpdatesReceived count UPDATE messages since the agent started.
	UpdatesSent     uint64 `json:"updatesSent"`
	UpdatesReceived uint64 `json:"updatesReceived"`
	// Due is when the session will be made again for an edited LBPeer, at the earliest.
	Due time.Time `json:"due,omitzero"`
	// BFD is the state of the BFD session; empty where none is wanted. BFDMessage says why it
	// is not up.
	BFD        string `json:"bfd,omitempty"`
	BFDMessage string `json:"bfdMessage,omitempty"`
}

// BGPRoute is a route that a peer is told, or will be.
type BGPRoute struct {
	Prefix  netip.Prefix `json:"prefix"`
	Peer    string       `json:"peer"`
	NextHop netip.Addr   `json:"nextHop"`
	// Established is true where the session with the peer is.
	Established bool `json:"established"`
	// Communities are written as in a VIPAdvertisement.
	Communities     []string `json:"communities,omitempty"`
	MED             *uint32  `json:"med,omitempty"`
	LocalPreference *uint32  `json:"localPreference,omitempty"`
	Prepend         uint8    `json:"asPathPrepend,omitempty"`
	// Weight is that of the link bandwidth community; 0 where it is not sent.
	Weight uint32 `json:"weight,omitempty"`
}
