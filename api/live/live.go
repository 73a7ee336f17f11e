// SPDX-License-Identifier: Apache-2.0

// Package live defines the protocol between agents and the aggregated API (cmd/liveapi) over HTTPS:
// counters and announcements as changes since the last answer, and flows and drops on request. Bodies are
// JSON, except for Traffic. Both ends authenticate with certificates of one CA without other purpose.
// Fields may be added, but are never renamed or given another meaning; a Traffic starts with its version.
package live

import (
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/console"
)

// Names in the certificates. All agents share one, so clients verify this name instead of an address.
const (
	// AgentName is the DNS name of an agent's certificate (extended key usage serverAuth).
	AgentName = "agent.live.millrace.io"
	// ClientName is the DNS name of the only accepted client certificate (extended key usage clientAuth).
	ClientName = "client.live.millrace.io"
)

// Port is the default port of agents.
const Port = 7482

// Paths for GET requests. An error has a status of at least 400 and a body of one line.
const (
	// PathTraffic waits for the sample after parameter since, a Traffic.Cursor, if set, and returns a
	// Traffic.
	PathTraffic = "/v1/traffic"
	// PathState waits, up to WaitLimit, for changes after parameter since, a State.Cursor, if set, and
	// returns a State.
	PathState = "/v1/state"
	PathFlows = "/v1/flows"
	PathDrops = "/v1/drops"
)

// Query parameters of requests.
const (
	ParameterSince = "since"
	// ParameterService is namespace/name, for flows and drops. It is required.
	ParameterService = "service"
	// ParameterLimit is the maximum number of flows or drops, from 1 to MaxLimit. It defaults to MaxLimit.
	ParameterLimit = "limit"
	// ParameterClient is an address or a prefix (CIDR) of clients, for flows and drops.
	ParameterClient = "client"
)

const (
	// SampleInterval is the interval at which an agent with requests reads its counters.
	SampleInterval = 5 * time.Second
	// WaitLimit is the maximum time that an answer waits for a change.
	WaitLimit = 30 * time.Second
	// MaxLimit of flows or drops in one answer.
	MaxLimit = 1000
)

// Traffic represents a node's counts between two samples, encoded by AppendBinary instead of JSON.
type Traffic struct {
	Node string
	// Cursor identifies the later sample: the next request's parameter since.
	Cursor string
	// Seconds is the time between the samples; 0 without a known earlier one: then all counts are zero, and
	// Cursor starts again.
	Seconds float64
	// Frontends are those with counts, sorted by Service and name.
	Frontends []FrontendTraffic
	// Drops are packets that were not forwarded, by reason, including those for no frontend.
	Drops map[string]uint64
	// Uplinks are those whose drivers did not accept frames.
	Uplinks []console.Uplink
}

// FrontendTraffic represents the counts of a frontend on one node.
type FrontendTraffic struct {
	console.FrontendName
	// Packets and Bytes (of IP packets) count packets that the node received from routers.
	Packets, Bytes uint64
	Connections    uint64
	Drops          map[string]uint64
}

// chunk is the maximum size of a single write in bytes.
const chunk = 4 << 10

// WriteBody writes a body in small pieces, each one HTTP/2 frame and TLS record, because a client of a
// thousand agents needs memory for the largest piece of each.
func WriteBody(w io.Writer, body []byte) error {
	for piece := range slices.Chunk(body, chunk) {
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// State represents a node's announcements, as changes since a cursor.
type State struct {
	Node   string `json:"node"`
	Cursor string `json:"cursor"`
	// Whole is true if the state replaces the previous one; otherwise it has changes since the cursor.
	Whole bool `json:"whole,omitempty"`
	// Sessions are all BGP sessions sorted by peer; absent if none changed or a complete state has none.
	Sessions []console.BGPPeer `json:"sessions,omitempty"`
	// VIPs are all VIPs of the node, or those whose decision changed.
	VIPs []console.VIPGroup `json:"vips,omitempty"`
	// Gone are VIPs that the node no longer has, and that the reader may never have known.
	Gone []netip.Addr `json:"gone,omitempty"`
}

// Flows represents connections of a Service to pods on the node.
type Flows struct {
	Node  string `json:"node"`
	Items []Flow `json:"items"`
	// Truncated is true if there may be more of them.
	Truncated bool `json:"truncated,omitempty"`
}

// Flow represents a connection, or the equivalent for answered datagrams.
type Flow struct {
	Client   netip.AddrPort `json:"client"`
	VIP      netip.AddrPort `json:"vip"`
	Protocol string         `json:"protocol"`
	Endpoint netip.AddrPort `json:"endpoint"`
	// LastSeen is the time of its last packet, to a few seconds.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// State is Established or Closing.
	State string `json:"state"`
}

// States of flows.
const (
	FlowEstablished = "Established"
	FlowClosing     = "Closing"
)

// Drops represents samples of dropped packets of a Service, the latest first.
type Drops struct {
	Node      string         `json:"node"`
	Items     []console.Drop `json:"items"`
	Truncated bool           `json:"truncated,omitempty"`
}
