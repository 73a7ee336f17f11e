// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"time"
)

// History represents the history recorded by a node's agent, the line of `history`.
type History struct {
	Node    string         `json:"node"`
	Entries []HistoryEntry `json:"entries"`
	// Since is the time of the oldest entry, selected or not; zero if there is no entry.
	Since time.Time `json:"since,omitzero"`
	// Damaged counts lines that cannot be parsed, such as the last line of a killed agent.
	Damaged int `json:"damaged,omitempty"`
	// Omitted counts older entries beyond the query's limit.
	Omitted int `json:"omitted,omitempty"`
}

// HistoryKind is the subject of an entry.
type HistoryKind string

const (
	// HistoryAgent is Started or Ended.
	HistoryAgent HistoryKind = "Agent"
	// HistoryDrops counts the packets dropped in a minute.
	HistoryDrops HistoryKind = "Drops"
	// HistorySession is a BGP or BFD session: Established, Lost, Failing, Removed, BFDUp or BFDDown.
	HistorySession HistoryKind = "Session"
	// HistoryRoute are VIPs: Announced, or NotAnnounced.
	HistoryRoute HistoryKind = "Route"
	// HistoryNode are nodes: Added, Removed, Down, Up, Draining, DrainEnded; this one: Isolated, Rejoined,
	// Problem, Resolved.
	HistoryNode HistoryKind = "Node"
	// HistoryEndpoints are endpoints of the node: Ready, NotReady or Gone; or NoneReady, Recovered.
	HistoryEndpoints HistoryKind = "Endpoints"
	// HistoryLeftOut counts entries of another kind that exceeded the rate limit.
	HistoryLeftOut HistoryKind = "LeftOut"
)

// HistoryEntry is a line of the history and of its file.
type HistoryEntry struct {
	Time time.Time   `json:"time"`
	Kind HistoryKind `json:"kind"`
	What string      `json:"what,omitempty"`
	// Services are namespace/name. Without Services, an entry is about the node.
	Services []string     `json:"services,omitempty"`
	VIPs     []netip.Addr `json:"vips,omitempty"`
	// Names are names of nodes or LBPeers.
	Names     []string         `json:"names,omitempty"`
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
	// Count is, by kind, the node's remaining ready endpoints, the represented VIPs, or omitted entries.
	Count   uint64        `json:"count,omitempty"`
	Message string        `json:"message,omitempty"`
	Drops   []HistoryDrop `json:"drops,omitempty"`
}

// HistoryDrop counts packets dropped in a minute.
type HistoryDrop struct {
	Reason string `json:"reason"`
	// Service is absent for packets that belong to no Service.
	Service string `json:"service,omitempty"`
	Count   uint64 `json:"count"`
}

// HistoryQuery specifies entries.
type HistoryQuery struct {
	// From and To are inclusive bounds; zero: unbounded.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Service is namespace/name and excludes entries about other Services; empty: all.
	Service string `json:"service,omitempty"`
	// Last limits the result to the newest entries; 0: all.
	Last int `json:"last,omitempty"`
}
