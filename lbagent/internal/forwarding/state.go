// SPDX-License-Identifier: Apache-2.0

// Package forwarding defines the contents of the data plane's maps (State) and computes the ordered operations
// from their current to their wanted content. It is pure: no I/O, clock or logger.
package forwarding

import (
	"math"
	"net/netip"
	"slices"
)

// Sizes shared with the BPF programs.
const (
	// Rows is the number of rows of an ordinary node table, and of a block of the map of rows.
	Rows = 4096
	// MinRows and MaxRows are the sizes of the smallest and the largest node table. Sizes are powers of two,
	// so that the program selects a row by a shift.
	MinRows = 128
	MaxRows = 65536
	// ChainLength is the number of former owners in a row, newest first.
	ChainLength = 3
	// EndpointRows is the number of rows of an endpoint table.
	EndpointRows = 512
	// Zones is the number of zones including 0, which means no zone.
	Zones = 8
	// MaxNodeID is the highest node id; ids start at 1.
	MaxNodeID = 16383
	// MaxShortNodeID is the highest 12-bit node id. Longer ids in a packet's path enlarge the packet.
	MaxShortNodeID = 4095
	// NodeIngressInterfaces is the maximum number of interfaces that packets of one node are accepted on,
	// unless all are.
	NodeIngressInterfaces = 8
)

// NodeID is the id that the operator assigned to a node (LBNode.spec.id); zero means no node.
type NodeID uint16

// Zone is a zone's number, below Zones; zero means no zone. All nodes use the same numbers.
type Zone uint8

// EndpointID is the index in the node's endpoint map; zero means no endpoint. Ids are stable for the endpoint's
// lifetime and reused as late as possible, so that a connection never reaches another Service's endpoint.
type EndpointID uint32

// RefusedEndpoint marks the rows of an endpoint table whose new flows are refused.
const RefusedEndpoint EndpointID = math.MaxUint32

// FrontendID is the index of a frontend's counters; zero is unused.
type FrontendID uint32

// EndpointTableSlot identifies an endpoint table; zero means no table.
type EndpointTableSlot uint32

// SourceSet identifies a set of prefixes of one address family; zero admits all sources.
type SourceSet uint32

const (
	// NoSources is the empty set, which admits no source.
	NoSources SourceSet = math.MaxUint32
	// Pools is the set of all pool prefixes. Packets to an address in it that is not a VIP are dropped.
	Pools SourceSet = math.MaxUint32 - 1
	// Aggregates is the set of announced aggregates. Packets to an address in it that is neither a VIP nor in a
	// pool are dropped.
	Aggregates SourceSet = math.MaxUint32 - 2
)

// OfFrontends reports whether the set contains sources of frontends, not destinations.
func (s SourceSet) OfFrontends() bool { return s != Pools && s != Aggregates }

// SourceRange is a masked prefix of a set, without IPv4-mapped addresses.
type SourceRange struct {
	Set    SourceSet
	Prefix netip.Prefix
}

// FrontendKey identifies a frontend by packet fields.
type FrontendKey struct {
	// VIP is never IPv4-mapped.
	VIP netip.Addr
	// Port is in host byte order.
	Port uint16
	// Protocol is the IP protocol number: 6 for TCP, 17 for UDP, 132 for SCTP.
	Protocol uint8
}

// Frontend is the handling of packets to a FrontendKey.
type Frontend struct {
	ID FrontendID
	// Local is true for externalTrafficPolicy Local without session affinity. As the ingress node, this node
	// then prefers its own endpoints (stage 2 alone).
	Local bool
	// Table is the node table of stage 1. It is zero if no endpoint is alive, and for Local unless the VIP may
	// be announced for another frontend.
	Table NodeTableSlot
	// Zones are the node tables by zone if they differ; this node's zone has Table. Otherwise, and for zones
	// without nodes, they are zero.
	Zones [Zones]NodeTableSlot
	// Endpoints is the endpoint table of stage 2; zero without usable endpoints on this node.
	Endpoints EndpointTableSlot
	// Refuses is true if the Service has no usable endpoint on any node, so that new connections are refused
	// (TCP reset, ICMP port unreachable).
	Refuses bool
	// Affinity is the session affinity timeout (ClientIP) in seconds since the client's last new connection;
	// zero disables it.
	Affinity uint32
	// Ranges is the set of admitted clients (loadBalancerSourceRanges); zero admits all.
	Ranges SourceSet
}

// Row is a row of a node table: the primary takes new flows, and the nodes in the chain are queried for unknown
// flows. Unused places of the chain are zero and come last; the primary is never in the chain.
type Row struct {
	Primary NodeID
	Chain   [ChainLength]NodeID
	// History is the number of former owners at the front of the chain; the other places are filled by rank.
	History uint8
}

// NodeTable is the table of stage 1, with as many rows as its slot.
type NodeTable []Row

// NewNodeTable returns an empty table of ordinary size.
func NewNodeTable() *NodeTable { return NewSizedNodeTable(Rows) }

// NewSizedNodeTable returns an empty table of that number of rows.
func NewSizedNodeTable(rows int) *NodeTable {
	table := make(NodeTable, rows)
	return &table
}

// Clone returns a copy of the table.
func (t *NodeTable) Clone() *NodeTable {
	copied := slices.Clone(*t)
	return &copied
}

// Equal reports whether two tables, possibly nil, have the same rows.
func (t *NodeTable) Equal(other *NodeTable) bool {
	return t == other || t != nil && other != nil && slices.Equal(*t, *other)
}

// EndpointTable is the table of stage 2.
type EndpointTable [EndpointRows]EndpointID

// Equal reports whether two tables, possibly nil, have the same rows.
func (t *EndpointTable) Equal(other *EndpointTable) bool {
	return t == other || t != nil && other != nil && *t == *other
}

// Endpoint is a pod's address and port in host byte order.
type Endpoint struct {
	Address netip.Addr
	Port    uint16
}

// Node is the tunnel endpoint of another node: the destination and accepted source of encapsulated packets. At
// least one address is valid.
type Node struct {
	IPv4, IPv6 netip.Addr
	Zone       Zone
	// Down is true if the node does not answer probes: rows, chains and overrides ignore it.
	Down bool
}

// Self is this node's own entry.
type Self struct {
	// ID is zero until the operator has assigned one; only Local frontends are then served here.
	ID NodeID
	// IPv4 and IPv6 are the source addresses of encapsulated packets and the addresses that receive them.
	IPv4, IPv6 netip.Addr
	Zone       Zone
}

// State is the complete content of the forwarding maps. NewState makes all Go maps non-nil.
type State struct {
	Self Self
	// Nodes is shared between States and immutable.
	Nodes     map[NodeID]Node
	Endpoints map[EndpointID]Endpoint
	// Tables are shared between States and immutable.
	EndpointTables map[EndpointTableSlot]*EndpointTable
	NodeTables     map[NodeTableSlot]*NodeTable
	Frontends      map[FrontendKey]Frontend
	SourceRanges   map[SourceRange]struct{}
	// VIPs are all VIPs of the cluster. A packet to a VIP without a matching frontend is dropped and never
	// returned to the router.
	VIPs map[netip.Addr]struct{}
}

// NewState returns an empty State.
func NewState() *State {
	return &State{
		Nodes:          map[NodeID]Node{},
		Endpoints:      map[EndpointID]Endpoint{},
		EndpointTables: map[EndpointTableSlot]*EndpointTable{},
		NodeTables:     map[NodeTableSlot]*NodeTable{},
		Frontends:      map[FrontendKey]Frontend{},
		SourceRanges:   map[SourceRange]struct{}{},
		VIPs:           map[netip.Addr]struct{}{},
	}
}

// NodeTableBlocks returns the number of blocks that the node tables fill, rounded up.
func (s *State) NodeTableBlocks() int {
	rows := 0
	for slot := range s.NodeTables {
		rows += slot.Rows()
	}
	return (rows + Rows - 1) / Rows
}

// Entries identifies map entries, in any order and possibly repeated.
type Entries struct {
	VIPs           []netip.Addr
	Endpoints      []EndpointID
	EndpointTables []EndpointTableSlot
	NodeTables     []NodeTableSlot
	Frontends      []FrontendKey
}

// Add adds other entries.
func (e *Entries) Add(others *Entries) {
	e.VIPs = append(e.VIPs, others.VIPs...)
	e.Endpoints = append(e.Endpoints, others.Endpoints...)
	e.EndpointTables = append(e.EndpointTables, others.EndpointTables...)
	e.NodeTables = append(e.NodeTables, others.NodeTables...)
	e.Frontends = append(e.Frontends, others.Frontends...)
}

// only returns the state restricted to these VIPs, endpoints, tables and frontends; nil stands for all.
func (s *State) only(entries *Entries) *State {
	if entries == nil {
		return s
	}
	return &State{
		Self: s.Self, Nodes: s.Nodes, SourceRanges: s.SourceRanges,
		VIPs:           among(s.VIPs, entries.VIPs),
		Endpoints:      among(s.Endpoints, entries.Endpoints),
		EndpointTables: among(s.EndpointTables, entries.EndpointTables),
		NodeTables:     among(s.NodeTables, entries.NodeTables),
		Frontends:      among(s.Frontends, entries.Frontends),
	}
}

// CopyFrom copies the entries from another State.
func (s *State) CopyFrom(from *State, entries *Entries) {
	copyKeys(s.VIPs, from.VIPs, entries.VIPs)
	copyKeys(s.Endpoints, from.Endpoints, entries.Endpoints)
	copyKeys(s.EndpointTables, from.EndpointTables, entries.EndpointTables)
	copyKeys(s.NodeTables, from.NodeTables, entries.NodeTables)
	copyKeys(s.Frontends, from.Frontends, entries.Frontends)
}

func copyKeys[K comparable, V any](to, from map[K]V, keys []K) {
	for _, key := range keys {
		if value, found := from[key]; found {
			to[key] = value
		} else {
			delete(to, key)
		}
	}
}

func among[K comparable, V any](all map[K]V, keys []K) map[K]V {
	some := make(map[K]V, len(keys))
	for _, key := range keys {
		if value, found := all[key]; found {
			some[key] = value
		}
	}
	return some
}
