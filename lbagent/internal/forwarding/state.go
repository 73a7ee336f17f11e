// SPDX-License-Identifier: Apache-2.0

// Package forwarding has the exact contents of the data plane's maps (State). It
// computes the ordered operations that lead from what the maps hold to what they
// should hold. It is pure: no I/O, clock or logger.
package forwarding

import (
	"math"
	"net/netip"
	"slices"
)

// Shapes that the BPF program and this package agree on.
const (
	// Rows is the number of rows of a node table of ordinary size, and of the blocks that the map
	// of rows is divided into.
	Rows = 4096
	// LeastRows and MostRows are those of the smallest and of the largest node table. All are
	// powers of two, so that the program picks a row by a shift.
	LeastRows = 128
	MostRows  = 65536
	// ChainLength is how many former owners a row remembers, newest first.
	ChainLength = 3
	// EndpointRows is the number of rows of a node's endpoint table.
	EndpointRows = 512
	// Zones is how many zones there are, 0 included, which means none.
	Zones = 8
	// MaxNodeID is the highest node id; ids start at 1 and 0 means none.
	MaxNodeID = 16383
	// MaxShortNodeID is the highest one of 12 bits. A packet whose path has a longer one is longer.
	MaxShortNodeID = 4095
	// NodeIngressInterfaces is of how many interfaces the packets of one node are taken, unless
	// they are taken of all.
	NodeIngressInterfaces = 8
)

// NodeID is the small number that the operator gives a node (LBNode.spec.id).
// Zero means no node.
type NodeID uint16

// Zone is a zone's number, below Zones. Zero means none. All nodes of a cluster
// number its zones alike.
type Zone uint8

// EndpointID is the index of an endpoint in the node's endpoint map. Zero
// means no endpoint. Ids are stable while the endpoint lives and are not
// reused soon after, so that a connection never takes the endpoint of another Service.
type EndpointID uint32

// RefusedEndpoint is in the rows of an endpoint table whose new flows are refused. It is no
// endpoint's id.
const RefusedEndpoint EndpointID = math.MaxUint32

// FrontendID is the index of a frontend's counters. Zero is not used.
type FrontendID uint32

// EndpointTableSlot names one endpoint table of EndpointRows rows. Zero means none.
type EndpointTableSlot uint32

// SourceSet names a set of prefixes of one address family. Zero means none: who
// has no set admits everybody.
type SourceSet uint32

const (
	// Nobody is the set that stays empty.
	Nobody SourceSet = math.MaxUint32
	// Pools is the set of the addresses that VIPs are taken from. A packet to
	// one that is no VIP is for nobody.
	Pools SourceSet = math.MaxUint32 - 1
	// Aggregates is the set of the prefixes that routers are told in place of single VIPs. A
	// packet to an address of one that is neither a VIP nor of a pool is for nobody.
	Aggregates SourceSet = math.MaxUint32 - 2
)

// OfFrontends reports whether the set is of sources that frontends admit, not of destinations.
func (s SourceSet) OfFrontends() bool { return s != Pools && s != Aggregates }

// SourceRange is a prefix of a set; masked, and never of IPv4-mapped addresses.
type SourceRange struct {
	Set    SourceSet
	Prefix netip.Prefix
}

// FrontendKey identifies a frontend by what a packet to it carries.
type FrontendKey struct {
	// VIP is never an IPv4-mapped IPv6 address.
	VIP netip.Addr
	// Port is the Service port in host byte order.
	Port uint16
	// Protocol is the IP protocol number: 6 for TCP, 17 for UDP, 132 for SCTP.
	Protocol uint8
}

// Frontend is what the program does with packets to a FrontendKey.
type Frontend struct {
	ID FrontendID
	// Local is true for externalTrafficPolicy Local without session affinity. As
	// the ingress node, this node then serves from its own endpoints, as far as it
	// has any: stage 2 alone.
	Local bool
	// Table is the node table of stage 1; zero where Local, unless the VIP may
	// be announced for another frontend's sake, or where no endpoint lives
	// anywhere.
	Table NodeTableSlot
	// Zones are the node tables of nodes by their zone, where the frontend has more
	// than one; that of this node's zone is Table. Of a zone without nodes, and
	// where all nodes have one table, they are zero.
	Zones [Zones]NodeTableSlot
	// Endpoints is the node's own endpoint table of stage 2; zero where this
	// node has no usable endpoint.
	Endpoints EndpointTableSlot
	// Refuses is true where the Service has no usable endpoint anywhere. New
	// connections are then refused (a TCP reset, ICMP port unreachable).
	Refuses bool
	// Affinity is for how many seconds after its last new connection a client
	// address keeps its endpoint (sessionAffinity ClientIP); zero means not at all.
	Affinity uint32
	// Ranges names the set of prefixes whose clients are admitted
	// (loadBalancerSourceRanges); zero admits all clients.
	Ranges SourceSet
}

// Row is one row of a node table: a primary, which takes new flows, and a chain
// of nodes to ask for flows that it does not know. Unused chain places are zero and come last;
// the primary is never in the chain.
type Row struct {
	Primary NodeID
	Chain   [ChainLength]NodeID
	// History is how many places of the chain, from its front, are of former
	// owners; the others were filled by rank.
	History uint8
}

// NodeTable is what stage 1 chooses by: a node for each row, of as many as its slot has.
type NodeTable []Row

// NewNodeTable returns a table of Rows empty rows.
func NewNodeTable() *NodeTable { return NewNodeTableOf(Rows) }

// NewNodeTableOf returns a table of so many empty rows.
func NewNodeTableOf(rows int) *NodeTable {
	table := make(NodeTable, rows)
	return &table
}

// Clone returns a copy.
func (t *NodeTable) Clone() *NodeTable {
	copied := slices.Clone(*t)
	return &copied
}

// Equal reports whether two tables, of which either may be nil, have the same rows.
func (t *NodeTable) Equal(other *NodeTable) bool {
	return t == other || t != nil && other != nil && slices.Equal(*t, *other)
}

// EndpointTable is an endpoint table.
type EndpointTable [EndpointRows]EndpointID

// Equal reports whether two tables, of which either may be nil, have the same rows.
func (t *EndpointTable) Equal(other *EndpointTable) bool {
	return t == other || t != nil && other != nil && *t == *other
}

// Endpoint is a pod's address and port in host byte order.
type Endpoint struct {
	Address netip.Addr
	Port    uint16
}

// Node is how another node of the cluster is reached, and from which
// addresses encapsulated packets are accepted. An invalid address means the
// node has none of that family; at least one is valid.
type Node struct {
	IPv4, IPv6 netip.Addr
	Zone       Zone
	// Down is true where the node does not answer probes: it is in no row and no chain, and
	// exceptions that name it do not count.
	Down bool
}

// Self is what the program needs to know of the node it runs on.
type Self struct {
	// ID is zero until the operator has given one; stage 1 then has no
	// primary that is this node, and only Local frontends are forwarded here.
	ID NodeID
	// IPv4 and IPv6 are the outer source addresses of encapsulated packets
	// and the addresses on which they are received.
	IPv4, IPv6 netip.Addr
	Zone       Zone
}

// State is the whole content of the forwarding maps. The maps are never nil
// in a State made by NewState.
type State struct {
	Self Self
	// Nodes is shared between States: who changes a node makes another map.
	Nodes     map[NodeID]Node
	Endpoints map[EndpointID]Endpoint
	// EndpointTables and NodeTables are shared, not copied, between States: treat
	// what the pointers name as immutable.
	EndpointTables map[EndpointTableSlot]*EndpointTable
	NodeTables     map[NodeTableSlot]*NodeTable
	Frontends      map[FrontendKey]Frontend
	SourceRanges   map[SourceRange]struct{}
	// VIPs are all addresses that belong to Millrace on this cluster. A
	// packet to one that matches no frontend is dropped here, with a reason. It
	// is never returned to the router.
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

// NodeTableBlocks is how many blocks of Rows rows the node tables fill.
func (s *State) NodeTableBlocks() int {
	rows := 0
	for slot := range s.NodeTables {
		rows += slot.Rows()
	}
	return (rows + Rows - 1) / Rows
}

// Entries names entries of the maps of a State, in any order, each once or several times.
type Entries struct {
	VIPs           []netip.Addr
	Endpoints      []EndpointID
	EndpointTables []EndpointTableSlot
	NodeTables     []NodeTableSlot
	Frontends      []FrontendKey
}

// Add adds the entries of others.
func (e *Entries) Add(others *Entries) {
	e.VIPs = append(e.VIPs, others.VIPs...)
	e.Endpoints = append(e.Endpoints, others.Endpoints...)
	e.EndpointTables = append(e.EndpointTables, others.EndpointTables...)
	e.NodeTables = append(e.NodeTables, others.NodeTables...)
	e.Frontends = append(e.Frontends, others.Frontends...)
}

// only returns the state without all other VIPs, endpoints, tables and frontends; nil stands for
// all entries.
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

// Take has entries be as in another State, from which this one differs in no others.
func (s *State) Take(from *State, entries *Entries) {
	take(s.VIPs, from.VIPs, entries.VIPs)
	take(s.Endpoints, from.Endpoints, entries.Endpoints)
	take(s.EndpointTables, from.EndpointTables, entries.EndpointTables)
	take(s.NodeTables, from.NodeTables, entries.NodeTables)
	take(s.Frontends, from.Frontends, entries.Frontends)
}

func take[K comparable, V any](to, from map[K]V, keys []K) {
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
