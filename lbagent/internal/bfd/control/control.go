// SPDX-License-Identifier: Apache-2.0

// Package control implements the protocol between a node's agent and its BFD process: JSON lines over a Unix
// socket. The agent sends all wanted sessions, the process all existing ones, each time in full. Sessions
// outlive the agent.
package control

import (
	"net/netip"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
)

// Socket is the default path of the socket.
const Socket = "/run/millrace/bfd.sock"

// Peer is a wanted session.
type Peer struct {
	// Name is the name of the LBPeer.
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	// Source is the local address; invalid selects the kernel's choice.
	Source netip.Addr `json:"source,omitzero"`
	// Multihop selects port 4784 (RFC 5883) instead of port 3784 with a TTL of 255 (RFC 5881).
	Multihop bool `json:"multihop,omitempty"`
	// MinimumTTL is the minimum TTL of packets of a multihop peer.
	MinimumTTL uint8          `json:"minimumTTL,omitempty"`
	Parameters bfd.Parameters `json:"parameters"`
}

// Want is the list of wanted sessions.
type Want struct {
	Peers []Peer `json:"peers"`
}

// Session is the state of a session.
type Session struct {
	Peer    string     `json:"peer"`
	Address netip.Addr `json:"address"`
	// State and PeerState are defined in RFC 5880, section 4.1.
	State     bfd.State `json:"state"`
	PeerState bfd.State `json:"peerState"`
	// Since is the time when the session last entered or left Up.
	Since time.Time `json:"since"`
	// Losses counts failures since the start of the process.
	Losses uint64 `json:"losses"`
	// Message is the reason why the session is not up, or empty.
	Message string `json:"message,omitempty"`
	// TransmitInterval and DetectionTime are the negotiated values.
	TransmitInterval time.Duration `json:"transmitInterval"`
	DetectionTime    time.Duration `json:"detectionTime"`
}

// Report is the list of existing sessions with counters.
type Report struct {
	Sessions []Session `json:"sessions"`
	// Discarded counts malformed datagrams and those of no session, by reason.
	Discarded map[string]uint64 `json:"discarded,omitempty"`
	// Problem is the reason why packets may be late, or empty.
	Problem string `json:"problem,omitempty"`
	// LongestDelay is the longest transmission delay since the start of the process.
	LongestDelay time.Duration `json:"longestDelay"`
}
