// SPDX-License-Identifier: Apache-2.0

// Package model turns what the API server holds into what one node needs
// to know of the load balancer: VIPs, frontends and their endpoints, nodes, peers. It is pure;
// what is wrong with an object comes back as a Problem and harms nothing else.
package model

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Gateways are the next hops of default routes, by family.
type Gateways map[millracev1beta1.AddressFamily][]netip.Addr

// Network is a network of one of the node's interfaces.
type Network struct {
	// Interface is the name.
	Interface string
	Prefix    netip.Prefix
	// Address is the node's own one, that of a point-to-point link outside of Prefix.
	Address netip.Addr
	// Spare is true for an address that only the lack of another one makes the node's: a
	// secondary, temporary or deprecated one.
	Spare bool
	// Excluded is true where the interface is set to be no uplink: nobody is told its addresses.
	Excluded bool
}

// NextHops are the node's addresses that a peer is told to send packets to, by the family of the
// address. They are invalid where the node has none.
type NextHops struct{ IPv4, IPv6 netip.Addr }

// Range is an LBPeer that is any router of a network.
type Range struct {
	// Name is that of the LBPeer.
	Name   string
	Prefix netip.Prefix
	// Most is how many routers have a session.
	Most int
	// Session is what all sessions with its routers have in common: it has no address.
	Session Peer
}

// Snapshot is everything that the agent watches, at one moment. Objects and lists of them are
// shared with informers' caches and other snapshots, and must not be changed. What changes costs
// least where objects keep their places in the lists.
type Snapshot struct {
	// NodeName is the node that the agent runs on.
	NodeName string
	// Node is that node, for its labels; nil until it has been seen.
	Node           *corev1.Node
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	VIPs           []*millracev1beta1.VIP
	Pools          []*millracev1beta1.VIPPool
	LBNodes        []*millracev1beta1.LBNode
	Peers          []*millracev1beta1.LBPeer
	Advertisements []*millracev1beta1.VIPAdvertisement
	Routes         []*millracev1beta1.VIPRoute
	// Passwords are those of BGP sessions, by the name of the Secret. They go nowhere but
	// to the speaker.
	Passwords map[string]string
	// TunnelKey is what the Secret with the keys of the tunnel says.
	TunnelKey TunnelSecret
	// OnLink are the networks of the node's interfaces, single addresses included; they are no
	// object's word.
	OnLink []Network
	// Gateways are those of the node's default routes.
	Gateways Gateways
	// DynamicNeighbors are the routers that connected to this node, of ranges of routers.
	DynamicNeighbors []netip.Addr
	// Down are the nodes that do not answer this node's probes; they are no object's word.
	Down map[forwarding.NodeID]bool
	// CutOff is true if half of the nodes or more were lost at once: this node is rather cut off.
	CutOff bool
}

// TunnelSecret is a Secret with the keys of the tunnel, as it was read.
type TunnelSecret struct {
	// State is nil where there is none that can be read.
	State *tunnelkey.State
	// Err is why it cannot be read; nil where there is no Secret.
	Err error
}

// Model is what a node needs to know of the load balancer. All slices are sorted, so that
// two models of the same snapshot are equal.
type Model struct {
	Self forwarding.Self
	// Departing is that of this node.
	Departing millracev1beta1.Departure
	// CutOff is true where this node is cut off from other nodes.
	CutOff bool
	Nodes  []Node
	// Zones are the names of the nodes' zones by number, with "" for none as the
	// first; none where there are more than forwarding.Zones.
	Zones []string
	VIPs  []VIP
	// Pools are the prefixes of all addresses that VIPs are taken from, as few
	// as they are: a packet to one that is no VIP is for nobody. Reserved
	// addresses and those of nodes are not among them.
	Pools []netip.Prefix
	// Aggregates are the prefixes that this node may announce in place of single VIPs.
	Aggregates []Aggregate
	// Frontends are in the order of their keys. Models that follow each other share those that have not
	// changed.
	Frontends []*Frontend
	Peers     []Peer
	// Ranges are the peers that are any router of a network.
	Ranges []Range
	// NextHops are those of routes to each peer, by its name.
	NextHops map[string]NextHops
	// BFD are the BFD sessions of peers that have one, by the peer's name.
	BFD map[string]desired.BFD
	// Advertisements hold only those that select this node.
	Advertisements []Advertisement
	// L2 are the advertisements of all nodes that have these answer on their links, sorted by name.
	L2 []Advertisement
	// Reach are the networks in which nodes can answer for VIPs, by the name of the advertisement.
	Reach    map[forwarding.NodeID]map[string][]netip.Prefix
	Problems []Problem
}

// FrontendsOf are the frontends of a VIP.
func (m *Model) FrontendsOf(vip netip.Addr) []*Frontend {
	first, _ := slices.BinarySearchFunc(m.Frontends, vip, compareVIP)
	after := first
	for after < len(m.Frontends) && m.Frontends[after].Key.VIP == vip {
		after++
	}
	return m.Frontends[first:after]
}

// ServiceName names a Service.
type ServiceName struct{ Namespace, Name string }

// TunnelKey is a key that packets between nodes are tagged with.
type TunnelKey = forwarding.TunnelKey

// TunnelKeys are the keys of a node.
type TunnelKeys = forwarding.TunnelKeys

// Node is a node of the cluster, this one included.
type Node struct {
	Name string
	ID   forwarding.NodeID
	forwarding.Node
	// Booting is true from when the node has booted until its agent is up.
	Booting bool
	// Departing is why the node hands over its routes; empty where it stays.
	Departing millracev1beta1.Departure
}

// VIP is an allocated address.
type VIP struct {
	Address netip.Addr
	Pool    string
	// Services that have the address, with their labels for advertisements.
	Services []VIPService
	// Occupant names the node or router whose address it is. Such a VIP has no frontends, and is not
	// to be in the maps; empty for all others.
	Occupant string
	// Release is how far its Services have given it up; empty where one keeps it.
	Release millracev1beta1.ReleasePhase
	// Canary is the LBPeer that the address is a canary of: nodes announce it to that peer alone, for
	// probes. No Service has it. Empty for all others.
	Canary string
	// Created is when the object was.
	Created time.Time
	// Duplicate is true where a node has found a host with the address before the VIP was used.
	Duplicate bool
}

// Target is a peer with the advertisement that says how a VIP is announced to it.
type Target struct {
	Peer          *Peer
	Advertisement *Advertisement
}

// Aggregate is a prefix that is announced in place of the VIPs in it.
type Aggregate struct {
	Prefix netip.Prefix
	// Advertisement is the first by name that asks for it.
	Advertisement string
}

// VIPService is a Service on a VIP.
type VIPService struct {
	Name   ServiceName
	Labels labels.Set
}

// ServiceLabels are the labels of each Service that has the address.
func (v *VIP) ServiceLabels() []labels.Set {
	sets := make([]labels.Set, 0, len(v.Services))
	for _, service := range v.Services {
		sets = append(sets, service.Labels)
	}
	return sets
}

// Frontend is one VIP, port and protocol of a Service.
type Frontend struct {
	Key      forwarding.FrontendKey
	Service  ServiceName
	PortName string
	// Local is true for externalTrafficPolicy Local: only nodes with a ready
	// endpoint announce the VIP.
	Local bool
	// Shared is true for a Local frontend whose VIP nodes may announce for the
	// sake of another frontend. A node without an endpoint of this one sends its
	// packets to a node that has one.
	Shared bool
	// HealthPort is where load balancers in front of the nodes ask which of them have a ready
	// endpoint (Service.spec.healthCheckNodePort); 0 means nowhere.
	HealthPort uint16
	// Affinity is for how many seconds after its last new connection a client
	// address keeps its endpoint; 0 means not at all.
	Affinity uint32
	// Restricted is true where only clients within Sources are admitted, which
	// are prefixes of the VIP's family, sorted, none within another
	// (Service.spec.loadBalancerSourceRanges). Without any, nobody is.
	Restricted bool
	Sources    []netip.Prefix
	// Weights are the number of usable endpoints by node, or what those weigh together where a
	// VIPRoute gives weights; a node without one is absent.
	Weights map[forwarding.NodeID]uint32
	// Zones are the weights that hold for packets which a router hands to a node of
	// the zone (Service.spec.trafficDistribution, hints of EndpointSlices); nil for
	// a zone without nodes. All are nil where Weights hold for all nodes.
	Zones [forwarding.Zones]map[forwarding.NodeID]uint32
	// Endpoints are those on this node that take new connections, sorted: the ready ones. Where
	// none here is ready, they are the serving and terminating ones. Those count for Weights only
	// where nothing else is ready (KEP-1669; ServesOwn: on this node; else anywhere). Else they
	// take what nodes send that do not know yet.
	Endpoints []forwarding.Endpoint
	// Shares are what the Endpoints weigh, in their order; nil where all weigh the same. Refused
	// is what the share weighs, against those, whose new connections are refused.
	Shares  []uint32
	Refused uint32
	// Backends are the Services that a VIPRoute leads the frontend to, in its order; none
	// where it has its own Service's endpoints.
	Backends []Backend
	// Terminating is true where Endpoints are terminating ones, because none
	// of this node is ready: they take what still comes, but nothing should
	// attract more (KEP-1669).
	Terminating bool
	// Unreached is true where a node that is down has an endpoint that takes new connections.
	Unreached bool
	// Living is true where no endpoint is usable but one, on any node, still
	// serves the connections that it has.
	Living bool
	// Draining are endpoints on this node that take no new connection but
	// still serve those that they have, sorted. These are the terminating and
	// serving ones. Except for UDP, they are also those that are merely not ready:
	// a failed probe is no reason to cut the connections of a pod that lives.
	Draining []forwarding.Endpoint
}

// Backend is a Service that a VIPRoute leads to.
type Backend struct {
	Service ServiceName
	Weight  uint32
	// Refused is true where it is invalid, or has no usable endpoint: its share is refused.
	Refused bool
	// Own are its endpoints on this node, sorted.
	Own []forwarding.Endpoint
}

// ServesOwn reports whether an ingress node that has endpoints of the frontend serves
// new connections from those. It does under policy Local. Under session affinity it does
// not: routers hash ports, so that connections of one client have several ingress nodes.
// They then meet at the node that the row names.
func (f *Frontend) ServesOwn() bool { return f.Local && f.Affinity == 0 }

// Share returns what the endpoint of that number weighs.
func (f *Frontend) Share(i int) uint32 {
	if f.Shares == nil {
		return 1
	}
	return f.Shares[i]
}

// Spreads reports whether packets to the frontend are sent to other nodes: it
// then needs a node table wherever an endpoint is usable.
func (f *Frontend) Spreads() bool { return !f.ServesOwn() || f.Shared }

// Peer is the session with the router of an LBPeer that selects this node.
type Peer = desired.Session

// Advertisement is a VIPAdvertisement that selects this node.
type Advertisement = desired.Advertisement

// Problem is why something that an object asks for is not done.
type Problem struct {
	Object  ObjectReference
	Reason  string
	Message string
}

// ObjectReference names an API object.
type ObjectReference struct{ Kind, Namespace, Name string }
