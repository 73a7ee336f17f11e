// SPDX-License-Identifier: Apache-2.0

// Package model turns what the API server holds into the node's view of the
// load balancer: VIPs, frontends and their endpoints, nodes, peers. It is pure;
// what is wrong with an object comes back as a Problem and harms nothing else.
package model

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// Snapshot is everything that the agent watches, at one moment. Objects are
// shared with the informers' caches and must not be changed.
type Snapshot struct {
	// NodeName is the node that the agent runs on.
	NodeName string
	// Node is that node, for its labels; nil until it has been seen.
	Node           *corev1.Node
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	VIPs           []*millracev1alpha1.VIP
	Pools          []*millracev1alpha1.IPPool
	LBNodes        []*millracev1alpha1.LBNode
	Peers          []*millracev1alpha1.BGPPeer
	Advertisements []*millracev1alpha1.BGPAdvertisement
}

// Model is the node's view of the load balancer. All slices are sorted, so
// that two models of the same snapshot are equal.
type Model struct {
	Self  program.Self
	Nodes []Node
	// Zones are the names of the nodes' zones by number, with "" for none as the
	// first; none where there are more than program.Zones.
	Zones []string
	VIPs  []VIP
	// Pools are the prefixes of all addresses that VIPs are taken from, as few
	// as they are: a packet to one that is no VIP is for nobody. Reserved
	// addresses and those of nodes are not among them.
	Pools     []netip.Prefix
	Frontends []Frontend
	Peers     []Peer
	// Advertisements hold only those that select this node.
	Advertisements []Advertisement
	Problems       []Problem
}

// ServiceName names a Service.
type ServiceName struct{ Namespace, Name string }

// Node is a node of the cluster, this one included.
type Node struct {
	Name       string
	ID         program.NodeID
	IPv4, IPv6 netip.Addr
	// Zone is 0 where it has none.
	Zone program.Zone
	// Booting is true from when the node has booted until its agent is up.
	Booting bool
}

// VIP is an allocated address.
type VIP struct {
	Address netip.Addr
	Pool    string
	// Services that have the address, with their labels for advertisements.
	Services []VIPService
}

// VIPService is a Service on a VIP.
type VIPService struct {
	Name   ServiceName
	Labels map[string]string
}

// Frontend is one VIP, port and protocol of a Service.
type Frontend struct {
	Key      program.FrontendKey
	Service  ServiceName
	PortName string
	// Local is true for externalTrafficPolicy Local.
	Local bool
	// Shared is true for a Local frontend whose VIP nodes may announce for the
	// sake of another frontend, without having an endpoint of this one: they
	// send its packets to a node that has.
	Shared bool
	// Affinity is for how many seconds after its last new connection a client
	// address keeps its endpoint; 0 means not at all.
	Affinity uint32
	// Restricted is true where only clients within Sources are admitted, which
	// are prefixes of the VIP's family, sorted, none within another
	// (Service.spec.loadBalancerSourceRanges). Without any, nobody is.
	Restricted bool
	Sources    []netip.Prefix
	// Weights are the number of usable endpoints by node; a node without one
	// is absent.
	Weights map[program.NodeID]uint32
	// Zones are the weights that hold for packets which a router hands to a node of
	// the zone (Service.spec.trafficDistribution, hints of EndpointSlices); nil for
	// a zone without nodes. All are nil where Weights hold for all nodes.
	Zones [program.Zones]map[program.NodeID]uint32
	// Endpoints are the usable endpoints on this node, sorted: the ready
	// ones, or the serving and terminating ones where no endpoint of the
	// Service is ready (Cluster: none anywhere; Local: none on this node).
	Endpoints []program.Endpoint
	// Terminating is true where Endpoints are terminating ones, because no
	// endpoint is ready: they take what still comes, but nothing should
	// attract more (KEP-1669).
	Terminating bool
	// Living is true where no endpoint is usable but one, on any node, still
	// serves the connections that it has.
	Living bool
	// Draining are endpoints on this node that take no new connection but
	// still serve those that they have, sorted: terminating and serving ones,
	// and but for UDP also those that are merely not ready, because a failed
	// probe is no reason to cut the connections of a pod that lives.
	Draining []program.Endpoint
}

// Spreads tells whether packets to the frontend are sent to other nodes: it
// then needs a node table wherever an endpoint is usable.
func (f *Frontend) Spreads() bool { return !f.Local || f.Shared }

// Peer is a BGPPeer that selects this node.
type Peer struct {
	Name             string
	Address          netip.Addr
	Port             uint16
	ASN, LocalASN    uint32
	HoldTime         time.Duration
	KeepaliveTime    time.Duration
	ConnectRetryTime time.Duration
	// MultiHopTTL is 0 for a directly connected peer.
	MultiHopTTL uint8
	IPv4, IPv6  bool
	// RestartTime is 0 where graceful restart is off.
	RestartTime time.Duration
}

// Advertisement is a BGPAdvertisement that selects this node.
type Advertisement struct {
	Name string
	// Pools and Peers: empty means all.
	Pools, Peers []string
	// Selects tells whether a Service's labels match; nil means all VIPs.
	Selects func(labels map[string]string) bool `json:"-"`
	// Communities are RFC 1997 values, LargeCommunities RFC 8092 triples.
	Communities      []uint32
	LargeCommunities [][3]uint32
	LocalPreference  *uint32
}

// Problem is why something that an object asks for is not done.
type Problem struct {
	Object  ObjectReference
	Reason  string
	Message string
}

// ObjectReference names an API object.
type ObjectReference struct{ Kind, Namespace, Name string }
