// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"time"
)

// History represents the history that a node's agent recorded: the line of `history`.
type History struct {
	Node    string         `json:"node"`
	Entries []HistoryEntry `json:"entries"`
	// Since is the time of the oldest entry, even if it is not selected; zero without entries.
	Since time.Time `json:"since,omitzero"`
	// Damaged counts lines that cannot be parsed, such as the last line of an agent that was killed.
	Damaged int `json:"damaged,omitempty"`
	// Omitted counts older entries beyond the query's limit.
	Omitted int `json:"omitted,omitempty"`
}

// HistoryKind is the subject of an entry.
type HistoryKind string

const (
	// HistoryAgent is a start or an end of the agent: Started or Ended.
	HistoryAgent HistoryKind = "Agent"
	// HistoryDrops is the number of packets dropped in a minute.
	HistoryDrops HistoryKind = "Drops"
	// HistorySession is an event of a BGP or BFD session: Established, Lost, Failing, Removed, BFDUp or
	// BFDDown.
	HistorySession HistoryKind = "Session"
	// HistoryRoute is a change of the announcement of VIPs: Announced or NotAnnounced.
	HistoryRoute HistoryKind = "Route"
	// HistoryNode is an event of other nodes (Added, Removed, Down, Up, Draining, DrainEnded) or of this node
	// (Isolated, Rejoined, Problem, Resolved).
	HistoryNode HistoryKind = "Node"
	// HistoryEndpoints is an event of endpoints on the node (Ready, NotReady, Gone), or of all of them
	// (NoneReady, Recovered).
	HistoryEndpoints HistoryKind = "Endpoints"
	// HistoryLeftOut is the number of entries of another kind that exceeded the rate limit.
	HistoryLeftOut HistoryKind = "LeftOut"
)

// HistoryEntry is an entry of the history, one line of its file.
type HistoryEntry struct {
	Time time.Time   `json:"time"`
	Kind HistoryKind `json:"kind"`
	What string      `json:"what,omitempty"`
	// Services are "namespace/name". An entry without Services is about the node.
	Services []string     `json:"services,omitempty"`
	VIPs     []netip.Addr `json:"vips,omitempty"`
	// Names are names of nodes or LBPeers.
	Names     []string         `json:"names,omitempty"`
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
	// Count is, depending on the kind, the number of the node's remaining ready endpoints, of VIPs in this
	// entry, or of omitted entries.
	Count   uint64        `json:"count,omitempty"`
	Message string        `json:"message,omitempty"`
	Drops   []HistoryDrop `json:"drops,omitempty"`
}

// HistoryDrop counts the packets dropped in a minute for one reason.
type HistoryDrop struct {
	Reason string `json:"reason"`
	// Service is absent for packets that belong to no Service.
	Service string `json:"service,omitempty"`
	Count   uint64 `json:"count"`
}

// HistoryQuery selects entries of the history.
type HistoryQuery struct {
	// From and To are inclusive bounds; zero means unbounded.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Service is "namespace/name" and excludes entries about other Services; empty selects all entries.
	Service string `json:"service,omitempty"`
	// Last limits the result to the newest entries; 0 means no limit.
	Last int `json:"last,omitempty"`
}
