// SPDX-License-Identifier: Apache-2.0

// Package live is what an agent tells the aggregated API (cmd/liveapi) over HTTPS: counters and
// the state of announcements as changes since the last answer, flows and drops when they are asked
// for. Bodies are JSON. Both ends name themselves by a certificate of one CA, which is for nothing
// else. Fields are added, but neither renamed nor given another meaning.
package live

import (
	"net/netip"
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

// Traffic is what a node counted between two samples.
type Traffic struct {
	Node string `json:"node"`
	// Cursor names the later sample: the next request's parameter since.
	Cursor string `json:"cursor"`
	// Seconds is the time between the samples. It is 0 where there is no earlier one, or the agent
	// does not know it any more: then nothing is counted, and Cursor begins anew.
	Seconds float64 `json:"seconds"`
	// Services are those for which anything was counted, sorted by name.
	Services []ServiceTraffic `json:"services,omitempty"`
}

// ServiceTraffic counts what was added for all frontends of a Service on one node.
type ServiceTraffic struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Packets and Bytes (of IP packets) are what routers handed to the node.
	Packets uint64 `json:"packets,omitempty"`
	Bytes   uint64 `json:"bytes,omitempty"`
	// Connections are new ones that pods of the node got.
	Connections uint64 `json:"connections,omitempty"`
	// Drops are packets that were not forwarded, by reason.
	Drops map[string]uint64 `json:"drops,omitempty"`
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
