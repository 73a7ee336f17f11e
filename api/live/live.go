// SPDX-License-Identifier: Apache-2.0

// Package live is what an agent tells the aggregated API (cmd/liveapi) over HTTPS: counters and
// the state of announcements as changes since the last answer, flows and drops when they are asked
// for. Bodies are JSON, but for Traffic. Both ends name themselves by a certificate of one CA, which
// is for nothing else. Fields are added, but neither renamed nor given another meaning; a Traffic
// begins with its version.
package live

import (
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/console"
)

// Names in the certificates. The agents of all nodes share one, so a client looks for this name
// and not for the node's address.
const (
	// AgentName is the DNS name of an agent's certificate (extended key usage serverAuth).
	AgentName = "agent.live.millrace.io"
	// ClientName is the DNS name of the aggregated API's certificate towards agents (extended key
	// usage clientAuth). An agent answers nobody else.
	ClientName = "client.live.millrace.io"
)

// Port is where agents listen by default.
const Port = 7482

// Paths. All are asked by GET. An error has a status of 400 or above and a body of one line.
const (
	// PathTraffic waits for the next sample after parameter since, a Traffic.Cursor, and answers
	// with a Traffic. Without since it answers at once.
	PathTraffic = "/v1/traffic"
	// PathState waits until anything differs from parameter since, a State.Cursor, for WaitLimit
	// at most, and answers with a State. Without since it answers at once.
	PathState = "/v1/state"
	// PathFlows answers with Flows.
	PathFlows = "/v1/flows"
	// PathDrops answers with Drops.
	PathDrops = "/v1/drops"
)

// Parameters of queries.
const (
	ParameterSince = "since"
	// ParameterService is namespace/name; of flows and drops. It is required.
	ParameterService = "service"
	// ParameterLimit is how many flows or drops are wanted: 1 to MaxLimit, and MaxLimit where it
	// is absent.
	ParameterLimit = "limit"
	// ParameterClient is an address or a prefix (CIDR) of clients; of flows and drops.
	ParameterClient = "client"
)

const (
	// SampleInterval is how often an agent that is asked reads its counters.
	SampleInterval = 5 * time.Second
	// WaitLimit is how long an answer waits for something to tell.
	WaitLimit = 30 * time.Second
	// MaxLimit of flows or drops in one answer.
	MaxLimit = 1000
)

// Traffic is what a node counted between two samples. Its body is not JSON: AppendBinary makes it,
// and UnmarshalBinary reads it.
type Traffic struct {
	Node string
	// Cursor names the later sample: the next request's parameter since.
	Cursor string
	// Seconds is the time between the samples. It is 0 where there is no earlier one, or the agent
	// does not know it any more: then nothing is counted, and Cursor begins anew.
	Seconds float64
	// Frontends are those for which anything was counted, sorted by Service and name.
	Frontends []FrontendTraffic
	// Drops are packets that were not forwarded, by reason, also those for no frontend.
	Drops map[string]uint64
	// Uplinks are those whose drivers did not take frames.
	Uplinks []console.Uplink
}

// FrontendTraffic counts what was added for a frontend on one node.
type FrontendTraffic struct {
	console.FrontendName
	// Packets and Bytes (of IP packets) are what routers handed to the node.
	Packets, Bytes uint64
	// Connections are new ones that pods of the node got.
	Connections uint64
	// Drops are packets that were not forwarded, by reason.
	Drops map[string]uint64
}

// chunk is how many bytes of a body agents write at once.
const chunk = 4 << 10

// WriteBody writes a body in small pieces, each of which is a frame of HTTP/2 and a record of TLS.
// Who reads it has a thousand agents, and for each the memory of the largest piece that ever came.
func WriteBody(w io.Writer, body []byte) error {
	for piece := range slices.Chunk(body, chunk) {
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// State is what a node announces, as changes since a cursor.
type State struct {
	Node   string `json:"node"`
	Cursor string `json:"cursor"`
	// Whole is true where the state is whole: the reader forgets what it knew of the node.
	// Otherwise it has what changed since the request's cursor, which may be nothing.
	Whole bool `json:"whole,omitempty"`
	// Sessions are all BGP sessions of the node, sorted by peer. They are absent where none of them
	// changed, and of a whole state where there is none.
	Sessions []console.BGPPeer `json:"sessions,omitempty"`
	// VIPs are together all VIPs of the node, or those whose decision changed.
	VIPs []console.VIPGroup `json:"vips,omitempty"`
	// Gone are VIPs that the node has no more. The reader may not know them: they came and went.
	Gone []netip.Addr `json:"gone,omitempty"`
}

// Flows are connections of a Service whose pods are on the node.
type Flows struct {
	Node  string `json:"node"`
	Items []Flow `json:"items"`
	// Truncated is true where there may be more of them.
	Truncated bool `json:"truncated,omitempty"`
}

// Flow is one connection, or what an answered datagram makes like one.
type Flow struct {
	Client   netip.AddrPort `json:"client"`
	VIP      netip.AddrPort `json:"vip"`
	Protocol string         `json:"protocol"`
	Endpoint netip.AddrPort `json:"endpoint"`
	// LastSeen is when its last packet came, to a few seconds.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// State is Established or Closing.
	State string `json:"state"`
}

// States of a flow.
const (
	FlowEstablished = "Established"
	FlowClosing     = "Closing"
)

// Drops are samples of dropped packets of a Service, the latest first.
type Drops struct {
	Node  string         `json:"node"`
	Items []console.Drop `json:"items"`
	// Truncated is true where there may be more of them.
	Truncated bool `json:"truncated,omitempty"`
}
