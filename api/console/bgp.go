// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"time"
)

// BGP represents the state of a node's BGP sessions, or the routes that they announce.
type BGP struct {
	Node   string     `json:"node"`
	Peers  []BGPPeer  `json:"peers,omitempty"`
	Routes []BGPRoute `json:"routes,omitempty"`
}

// BGPPeer represents a node's session with one LBPeer.
type BGPPeer struct {
	Peer    string     `json:"peer"`
	Address netip.Addr `json:"address"`
	// LocalAddress is the node's address in the session; absent if there is no connection.
	LocalAddress netip.Addr `json:"localAddress,omitzero"`
	// State is the state of RFC 4271, section 8.2.2; Since is the time at which the session last entered or
	// left Established.
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
	// LastError is the reason why the last session or attempt ended, at LastErrorTime. It is kept when a new
	// session is established.
	LastError     string    `json:"lastError,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`
	// Flaps counts the lost sessions since the agent started.
	Flaps    uint64   `json:"flaps"`
	Families []string `json:"families,omitempty"`
	// RoutesSent counts routes that are announced, or will be once the session is established.
	RoutesSent int `json:"routesSent"`
	// RoutesAccepted is always absent, because only BMP (RFC 8671) would provide it.
	RoutesAccepted *int `json:"routesAccepted,omitempty"`
	// UpdatesSent and UpdatesReceived count UPDATE messages since the agent started.
	UpdatesSent     uint64 `json:"updatesSent"`
	UpdatesReceived uint64 `json:"updatesReceived"`
	// Due is the earliest time at which the session restarts because of a changed LBPeer.
	Due time.Time `json:"due,omitzero"`
	// BFD is the state of the BFD session, if one is configured; BFDMessage is the reason why it is not up.
	BFD        string `json:"bfd,omitempty"`
	BFDMessage string `json:"bfdMessage,omitempty"`
}

// BGPRoute represents a route that is announced to a peer, or will be.
type BGPRoute struct {
	Prefix          netip.Prefix `json:"prefix"`
	Peer            string       `json:"peer"`
	NextHop         netip.Addr   `json:"nextHop"`
	Established     bool         `json:"established"`
	Communities     []string     `json:"communities,omitempty"`
	MED             *uint32      `json:"med,omitempty"`
	LocalPreference *uint32      `json:"localPreference,omitempty"`
	Prepend         uint8        `json:"asPathPrepend,omitempty"`
	// Weight is the value of the link bandwidth community; 0 if the community is not sent.
	Weight uint32 `json:"weight,omitempty"`
}
