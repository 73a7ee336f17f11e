// SPDX-License-Identifier: Apache-2.0

// Package model builds the model of one node from API objects: VIPs, frontends and their endpoints, nodes,
// peers. It is pure; an invalid object is reported as a Problem and does not affect others.
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

// Gateways are the next hops of default routes by family.
type Gateways map[millracev1beta1.AddressFamily][]netip.Addr

// Network is a network on one of the node's interfaces.
type Network struct {
	Interface string
	Prefix    netip.Prefix
	// Address is the node's address; on a point-to-point link it is outside of Prefix.
	Address netip.Addr
	// Unpreferred is true for secondary, temporary and deprecated addresses.
	Unpreferred bool
	// Excluded is true if the interface is configured not to be an uplink.
	Excluded bool
}

// NextHops are the next hops advertised to a peer by family; invalid if the node has no address.
type NextHops struct{ IPv4, IPv6 netip.Addr }

// Range is an LBPeer for all routers in a network.
type Range struct {
	// Name is the name of the LBPeer.
	Name   string
	Prefix netip.Prefix
	// MaxSessions is the maximum number of sessions.
	MaxSessions int
	// Session is the template of its sessions, without an address.
	Session Peer
}

// Snapshot is the state of all watched objects at one moment. Objects and lists are shared with informer caches
// and immutable. Changes are cheapest if objects keep their positions in the lists.
type Snapshot struct {
	NodeName string
	// Node is this node; nil until its first watch event.
	Node           *corev1.Node
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	VIPs           []*millracev1beta1.VIP
	Pools          []*millracev1beta1.VIPPool
	LBNodes        []*millracev1beta1.LBNode
	Peers          []*millracev1beta1.LBPeer
	Advertisements []*millracev1beta1.VIPAdvertisement
	Routes         []*millracev1beta1.VIPRoute
	// Passwords are those of BGP sessions by Secret name. They are passed only to the speaker.
	Passwords map[string]string
	TunnelKey TunnelSecret
	// OnLink are the networks of the node's interfaces, including single addresses. They are observed locally.
	OnLink []Network
	// Gateways are the gateways of the node's default routes.
	Gateways Gateways
	// Routers are the routers found by their advertisements, by interface. An existing interface without a router
	// has an invalid address.
	Routers map[string]netip.Addr
	// DynamicNeighbors are the connected routers of ranges.
	DynamicNeighbors []netip.Addr
	// Down are the nodes that do not answer this node's probes.
	Down map[forwarding.NodeID]bool
	// CutOff is true if at least half of the nodes were lost at once, so that this node is probably isolated.
	CutOff bool
}

// TunnelSecret is the parsed Secret with the keys of the tunnel.
type TunnelSecret struct {
	// State is nil if the Secret is missing or invalid.
	State *tunnelkey.State
	// Err is the parse error; nil if there is no Secret.
	Err error
}

// Model is the load balancer's state from the view of one node. All slices are sorted, so that two models of
// the same snapshot are equal.
type Model struct {
	Self forwarding.Self
	// Draining is this node's reason to hand over its routes.
	Draining millracev1beta1.DrainReason
	// CutOff is true if this node is probably isolated from other nodes.
	CutOff bool
	Nodes  []Node
	// Zones are the names of the nodes' zones by number; the first is "" for nodes without a zone. Empty if
	// there are more than forwarding.Zones.
	Zones []string
	VIPs  []VIP
	// Pools are the minimal prefixes of all addresses for VIPs, without reserved addresses and those of nodes.
	// Packets to an address in them that is not a VIP are dropped.
	Pools []netip.Prefix
	// Aggregates are the prefixes that this node may announce instead of single VIPs.
	Aggregates []Aggregate
	// Frontends are in key order. Successive models share unchanged ones.
	Frontends []*Frontend
	Peers     []Peer
	Ranges    []Range
	// NextHops are the next hops for each peer by name.
	NextHops map[string]NextHops
	// BFD are the BFD sessions by peer name.
	BFD map[string]desired.BFD
	// Advertisements select this node.
	Advertisements []Advertisement
	// L2 are the L2 advertisements of all nodes by name.
	L2 []Advertisement
	// Reach are the networks in which each node can answer for VIPs, by advertisement name.
	Reach    map[forwarding.NodeID]map[string][]netip.Prefix
	Problems []Problem
}

// FrontendsOf returns the frontends of a VIP.
func (m *Model) FrontendsOf(vip netip.Addr) []*Frontend {
	first, _ := slices.BinarySearchFunc(m.Frontends, vip, compareVIP)
	after := first
	for after < len(m.Frontends) && m.Frontends[after].Key.VIP == vip {
		after++
	}
	return m.Frontends[first:after]
}

// ServiceName identifies a Service.
type ServiceName struct{ Namespace, Name string }

// TunnelKey is a key for tags on packets between nodes.
type TunnelKey = forwarding.TunnelKey

// TunnelKeys are the keys of a node.
type TunnelKeys = forwarding.TunnelKeys

// Node is a node of the cluster, including this one.
type Node struct {
	Name string
	ID   forwarding.NodeID
	forwarding.Node
	// Booting is true from the node's boot until its agent is ready.
	Booting bool
	// Draining is the reason to hand over routes; empty if the node stays.
	Draining millracev1beta1.DrainReason
}

// VIP is an allocated address.
type VIP struct {
	Address netip.Addr
	Pool    string
	// Services are the Services with this address.
	Services []VIPService
	// Occupant is the node or router that owns the address; else empty. Such a VIP has no frontends and is not
	// in the maps.
	Occupant string
	// Release is the release phase of all its Services; empty if one retains the VIP.
	Release millracev1beta1.ReleasePhase
	// Canary is the LBPeer of a canary address, which is announced only to that peer and has no Service; else
	// empty.
	Canary  string
	Created time.Time
	// Duplicate is true if a node found a host with this address before the VIP was used.
	Duplicate bool
}

// Target is a peer and the advertisement that applies to a VIP.
type Target struct {
	Peer          *Peer
	Advertisement *Advertisement
}

// Aggregate is a prefix announced instead of the VIPs in it.
type Aggregate struct {
	Prefix netip.Prefix
	// Advertisement is the first requesting advertisement by name.
	Advertisement string
}

// VIPService is a Service on a VIP.
type VIPService struct {
	Name   ServiceName
	Labels labels.Set
}

// ServiceLabels returns the labels of each Service with the address.
func (v *VIP) ServiceLabels() []labels.Set {
	sets := make([]labels.Set, 0, len(v.Services))
	for _, service := range v.Services {
		sets = append(sets, service.Labels)
	}
	return sets
}

// Frontend is a VIP, port and protocol of a Service.
type Frontend struct {
	Key      forwarding.FrontendKey
	Service  ServiceName
	PortName string
	// Local is true for externalTrafficPolicy Local: only nodes with a ready endpoint announce the VIP.
	Local bool
	// Shared is true for a Local frontend whose VIP nodes may announce for another frontend. A node without an
	// endpoint then forwards its packets to a node with one.
	Shared bool
	// HealthPort is Service.spec.healthCheckNodePort, queried by external load balancers; 0 if unset.
	HealthPort uint16
	// Affinity is the session affinity timeout in seconds since the client's last new connection; 0 disables it.
	Affinity uint32
	// Restricted is true if only clients in Sources are admitted (Service.spec.loadBalancerSourceRanges):
	// sorted, disjoint prefixes of the VIP's family. If empty, no client is admitted.
	Restricted bool
	Sources    []netip.Prefix
	// Weights are the number of usable endpoints by node, or their total weight if a VIPRoute sets weights.
	// Nodes without usable endpoints are absent.
	Weights map[forwarding.NodeID]uint32
	// Zones are the weights for packets that enter through a node of the zone
	// (Service.spec.trafficDistribution, EndpointSlice hints); nil for zones without nodes. All are nil if
	// Weights apply everywhere.
	Zones [forwarding.Zones]map[forwarding.NodeID]uint32
	// Endpoints are the endpoints on this node that accept new connections, sorted: the ready ones or, if no pod
	// here is ready, the serving and terminating ones. The latter count for Weights only if no other endpoint
	// is ready (KEP-1669), on this node if ServesOwn, else anywhere. Otherwise, they serve connections from
	// nodes with outdated state.
	Endpoints []forwarding.Endpoint
	// Shares are the weights of Endpoints; nil if all are equal. Refused is the weight of refused connections
	// relative to Shares.
	Shares  []uint32
	Refused uint32
	// Backends are the Services of the frontend's VIPRoute, in order; empty without one.
	Backends []Backend
	// Terminating is true if Endpoints are terminating, because no pod on this node is ready. The node should
	// attract no more traffic (KEP-1669).
	Terminating bool
	// Unreached is true if a down node has endpoints for new connections.
	Unreached bool
	// OnlyEstablished is true if no endpoint is usable but one, on any node, still serves existing connections.
	OnlyEstablished bool
	// Draining are endpoints on this node that serve only existing connections, sorted: serving and terminating
	// ones and, except for UDP, endpoints that are not ready, because a failed probe is no reason to cut
	// connections.
	Draining []forwarding.Endpoint
}

// Backend is a Service of a VIPRoute.
type Backend struct {
	Service ServiceName
	Weight  uint32
	// Refused is true if it is invalid or has no usable endpoint: connections of its share are refused.
	Refused bool
	// Own are its endpoints on this node, sorted.
	Own []forwarding.Endpoint
}

// ServesOwn reports whether an ingress node prefers its own endpoints for new connections. This holds for
// policy Local without session affinity: routers hash ports, so that one client's connections enter through
// several nodes, and affinity requires the node in the row.
func (f *Frontend) ServesOwn() bool { return f.Local && f.Affinity == 0 }

// Share returns the weight of the i-th endpoint.
func (f *Frontend) Share(i int) uint32 {
	if f.Shares == nil {
		return 1
	}
	return f.Shares[i]
}

// Spreads reports whether packets to the frontend are forwarded to other nodes, which requires a node table.
func (f *Frontend) Spreads() bool { return !f.ServesOwn() || f.Shared }

// Peer is the BGP session of an LBPeer that selects this node.
type Peer = desired.Session

// Advertisement is a parsed VIPAdvertisement.
type Advertisement = desired.Advertisement

// Problem is the reason why part of an object is not applied.
type Problem struct {
	Object  ObjectReference
	Reason  string
	Message string
}

// ObjectReference identifies an API object.
type ObjectReference struct{ Kind, Namespace, Name string }
