// SPDX-License-Identifier: Apache-2.0

// Package live defines the protocol between agents and the aggregated API (cmd/liveapi). It runs over HTTPS.
// Counters and announcements are sent as changes since the last response, flows and drops on request. Bodies
// are JSON, except for Traffic. Both sides authenticate with certificates of a CA that is used for nothing
// else. Fields may be added, but are never renamed or given another meaning; a Traffic starts with its
// version.
package live

import (
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/console"
)

// DNS names in the certificates. All agents share one certificate, so clients verify its name instead of an
// address.
const (
	// AgentName is the DNS name of an agent's certificate (extended key usage serverAuth).
	AgentName = "agent.live.millrace.io"
	// ClientName is the DNS name of the only accepted client certificate (extended key usage clientAuth).
	ClientName = "client.live.millrace.io"
)

// Port is the default TCP port of agents.
const Port = 7482

// Paths for GET requests. An error has a status of at least 400 and a body of one line.
const (
	// PathTraffic returns a Traffic. With parameter since, a Traffic.Cursor, it waits for the next sample.
	PathTraffic = "/v1/traffic"
	// PathState returns a State. With parameter since, a State.Cursor, it waits for changes, up to WaitLimit.
	PathState = "/v1/state"
	PathFlows = "/v1/flows"
	PathDrops = "/v1/drops"
)

// Query parameters of requests.
const (
	ParameterSince = "since"
	// ParameterService is "namespace/name" of a Service. It is required for flows and drops.
	ParameterService = "service"
	// ParameterLimit is the maximum number of flows or drops, from 1 to MaxLimit. It defaults to MaxLimit.
	ParameterLimit = "limit"
	// ParameterClient is an address or a prefix (CIDR) of clients, for flows and drops.
	ParameterClient = "client"
)

const (
	// SampleInterval is the interval at which an agent reads its counters while it receives requests.
	SampleInterval = 5 * time.Second
	// WaitLimit is the maximum time that a request waits for a change.
	WaitLimit = 30 * time.Second
	// MaxLimit is the maximum number of flows or drops in one response.
	MaxLimit = 1000
)

// Traffic represents a node's counts between two samples. It is encoded by AppendBinary, not as JSON.
type Traffic struct {
	Node string
	// Cursor identifies the later sample. It is the parameter since of the next request.
	Cursor string
	// Seconds is the time between the samples. It is 0 if the earlier sample is unknown; all counts are then
	// zero.
	Seconds float64
	// Frontends are the frontends with counts, sorted by Service and name.
	Frontends []FrontendTraffic
	// Drops counts packets that were not forwarded, by reason, including those that belong to no frontend.
	Drops map[string]uint64
	// Uplinks are the uplinks whose drivers rejected frames.
	Uplinks []console.Uplink
}

// FrontendTraffic represents the counts of a frontend on one node.
type FrontendTraffic struct {
	console.FrontendName
	// Packets and Bytes count the packets that the node received from routers; Bytes is the size of the IP
	// packets.
	Packets, Bytes uint64
	Connections    uint64
	Drops          map[string]uint64
}

// chunk is the maximum size of a single write in bytes.
const chunk = 4 << 10

// WriteBody writes a body in small chunks, each an HTTP/2 frame and a TLS record. A client of a thousand
// agents needs memory for the largest chunk of each.
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
	// Sessions are all BGP sessions, sorted by peer. It is absent if no session changed, or if a complete
	// state has no session.
	Sessions []console.BGPPeer `json:"sessions,omitempty"`
	// VIPs are the VIPs whose decisions changed, or all VIPs of the node in a complete state.
	VIPs []console.VIPGroup `json:"vips,omitempty"`
	// Gone are VIPs that the node no longer has. The reader may not know them.
	Gone []netip.Addr `json:"gone,omitempty"`
}

// Flows represents a Service's connections to pods on the node.
type Flows struct {
	Node  string `json:"node"`
	Items []Flow `json:"items"`
	// Truncated is true if there may be more flows.
	Truncated bool `json:"truncated,omitempty"`
}

// Flow represents a connection, or the equivalent for datagrams that were answered.
type Flow struct {
	Client   netip.AddrPort `json:"client"`
	VIP      netip.AddrPort `json:"vip"`
	Protocol string         `json:"protocol"`
	Endpoint netip.AddrPort `json:"endpoint"`
	// LastSeen is the time of the last packet, with a precision of a few seconds.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// State is Established or Closing.
	State string `json:"state"`
}

// States of flows.
const (
	FlowEstablished = "Established"
	FlowClosing     = "Closing"
)

// Drops represents samples of a Service's dropped packets, the latest first.
type Drops struct {
	Node      string         `json:"node"`
	Items     []console.Drop `json:"items"`
	Truncated bool           `json:"truncated,omitempty"`
}
