// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"time"
)

// History is what a node's agent recorded, the line of `history`.
type History struct {
	Node string `json:"node"`
	// Entries are in the order of their times.
	Entries []HistoryEntry `json:"entries"`
	// Since is the oldest time that anything was recorded of, asked for or not; zero where nothing was.
	Since time.Time `json:"since,omitzero"`
	// Damaged are lines that cannot be read, such as one that the agent wrote when it was killed.
	Damaged int `json:"damaged,omitempty"`
	// Omitted are older entries than those that were asked for.
	Omitted int `json:"omitted,omitempty"`
}

// HistoryKind is what an entry is about.
type HistoryKind string

// Kinds.
const (
	// HistoryAgent is Started or Ended.
	HistoryAgent HistoryKind = "Agent"
	// HistoryDrops are the packets dropped in a minute.
	HistoryDrops HistoryKind = "Drops"
	// HistorySession is a BGP or BFD session: Established, Lost, Failing, Removed, BFDUp or BFDDown.
	HistorySession HistoryKind = "Session"
	// HistoryRoute are VIPs: Announced, or NotAnnounced.
	HistoryRoute HistoryKind = "Route"
	// HistoryNode are nodes: Added, Removed, Down, Up, Departing, Staying; this one: CutOff, Connected,
	// Problem, Solved.
	HistoryNode HistoryKind = "Node"
	// HistoryEndpoints are endpoints of the node: Ready, NotReady or Gone; or NoneAnywhere, SomeAgain.
	HistoryEndpoints HistoryKind = "Endpoints"
	// HistoryLeftOut counts entries of another kind that were too many.
	HistoryLeftOut HistoryKind = "LeftOut"
)

// HistoryEntry is a line of the history, in the file, too. What does not apply is absent.
type HistoryEntry struct {
	Time time.Time   `json:"time"`
	Kind HistoryKind `json:"kind"`
	What string      `json:"what,omitempty"`
	// Services are namespace/name. Without any, the entry is about the node, and so about all Services.
	Services []string     `json:"services,omitempty"`
	VIPs     []netip.Addr `json:"vips,omitempty"`
	// Names are those of nodes or LBPeers.
	Names     []string         `json:"names,omitempty"`
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
	// Count is, by kind, how many endpoints of the node take new connections after it, how many VIPs
	// the entry stands for, or how many entries were left out.
	Count   uint64        `json:"count,omitempty"`
	Message string        `json:"message,omitempty"`
	Drops   []HistoryDrop `json:"drops,omitempty"`
}

// HistoryDrop counts packets dropped in a minute.
type HistoryDrop struct {
	Reason string `json:"reason"`
	// Service is absent of packets for no Service.
	Service string `json:"service,omitempty"`
	Count   uint64 `json:"count"`
}

// HistoryQuery selects entries.
type HistoryQuery struct {
	// From and To bound the time, both included; zero means no bound.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Service is namespace/name: entries about other Services are left out. Empty means all.
	Service string `json:"service,omitempty"`
	// Last is how many entries are returned at most, the newest; 0 means all.
	Last int `json:"last,omitempty"`
}
