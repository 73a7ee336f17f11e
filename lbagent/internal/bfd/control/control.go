// SPDX-License-Identifier: Apache-2.0

// Package control is how a node's agent and its BFD process speak: lines of JSON over a
// socket of the node. The agent sends each time all sessions that there should be, and the
// process each time all that there are. Sessions outlive the agent.
package control

import (
	"net/netip"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
)

// Socket is the path of the process's socket, in the containers of the agent's pod.
const Socket = "/run/millrace/bfd.sock"

// Peer is a session that there should be.
type Peer struct {
	// Name is that of the LBPeer.
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	// Source is the node's address of the session; invalid: the one by which the kernel
	// reaches the peer.
	Source netip.Addr `json:"source,omitzero"`
	// Multihop sessions use port 4784 (RFC 5883), the others port 3784 and a TTL of 255
	// (RFC 5881).
	Multihop bool `json:"multihop,omitempty"`
	// MinimumTTL is that of packets of a multihop peer; 0: any.
	MinimumTTL uint8          `json:"minimumTTL,omitempty"`
	Parameters bfd.Parameters `json:"parameters"`
}

// Want is all that there should be.
type Want struct {
	Peers []Peer `json:"peers"`
}

// Session is what is known of a session.
type Session struct {
	Peer    string     `json:"peer"`
	Address netip.Addr `json:"address"`
	// State and PeerState are those of RFC 5880, section 4.1.
	State     bfd.State `json:"state"`
	PeerState bfd.State `json:"peerState"`
	// Since is when the session last entered or left Up.
	Since time.Time `json:"since"`
	// Losses counts how often the session failed. It starts again with the process.
	Losses uint64 `json:"losses"`
	// Message says why the session is not up; it may be empty.
	Message string `json:"message,omitempty"`
	// TransmitInterval and DetectionTime are those negotiated.
	TransmitInterval time.Duration `json:"transmitInterval"`
	DetectionTime    time.Duration `json:"detectionTime"`
}

// Report is all that there is.
type Report struct {
	Sessions []Session `json:"sessions"`
	// Discarded counts datagrams that belong to no session or are malformed, by reason.
	Discarded map[string]uint64 `json:"discarded,omitempty"`
	// Problem says why packets may be late; empty where nothing is wrong.
	Problem string `json:"problem,omitempty"`
	// LongestDelay is the longest by which a packet was sent late since the process started.
	LongestDelay time.Duration `json:"longestDelay"`
}
