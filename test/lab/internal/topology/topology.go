// SPDX-License-Identifier: Apache-2.0

// Package topology defines the lab's hosts, addresses, routes and kernel settings. It is pure; package
// netns builds it.
//
//	client ── outside ══ router1…M ══ fabric ── node1…N, cp
//
// Without routers the client is on the fabric. Both segments are bridges in a separate namespace. Addresses
// are from documentation (RFC 5737, RFC 3849) and benchmarking (RFC 2544) blocks.
package topology

import (
	"fmt"
	"net/netip"
)

// Role is the role of a host.
type Role string

// Roles of machines.
const (
	RoleClient       Role = "client"
	RoleRouter       Role = "router"
	RoleControlPlane Role = "control-plane"
	RoleNode         Role = "node"
)

// Limits of the address plan.
const (
	MaxNodes   = 80
	MaxRouters = 20
)

// Segment is a layer 2 network, and the name of its bridge.
type Segment string

const (
	// Fabric connects nodes, control plane and routers.
	Fabric Segment = "fabric"
	// Outside connects the client and the routers.
	Outside Segment = "outside"
)

// The networks of the lab. Routers learn VIPs over BGP.
var (
	FabricV4  = netip.MustParsePrefix("198.51.100.0/25")
	FabricV6  = netip.MustParsePrefix("2001:db8:0:1::/64")
	OutsideV4 = netip.MustParsePrefix("198.51.100.128/25")
	OutsideV6 = netip.MustParsePrefix("2001:db8:0:2::/64")

	PodsV4     = netip.MustParsePrefix("198.18.0.0/16")
	PodsV6     = netip.MustParsePrefix("2001:db8:100::/48")
	ServicesV4 = netip.MustParsePrefix("198.19.0.0/16")
	ServicesV6 = netip.MustParsePrefix("2001:db8:ffff::/112")

	// APIServiceV4 is the address of the Service kubernetes.default.
	APIServiceV4 = netip.MustParseAddr("198.19.0.1")
	APIServiceV6 = netip.MustParseAddr("2001:db8:ffff::1")

	// DNSServiceV4 is the pods' DNS server; the lab has none.
	DNSServiceV4 = netip.MustParseAddr("198.19.0.10")

	defaultV4 = netip.MustParsePrefix("0.0.0.0/0")
	defaultV6 = netip.MustParsePrefix("::/0")
)

const (
	numberControlPlane  = 2
	numberNodes         = 10
	numberRouters       = 100
	numberClientInside  = 125
	numberClient        = 130
	numberRoutersBeyond = 200
)

// Interface is a host's link to a segment.
type Interface struct {
	Name string
	// Port is the other end on the segment's bridge.
	Port    string
	Segment Segment
	// Addresses are an IPv4 and an IPv6 address with the prefix lengths of their networks.
	Addresses []netip.Prefix
}

// Route is a static route; gateways share traffic equally.
type Route struct {
	Destination netip.Prefix
	Gateways    []netip.Addr
}

// Sysctl is a setting of a network namespace.
type Sysctl struct {
	// Name is a path below /proc/sys.
	Name  string
	Value string
}

// Host is a machine of the lab.
type Host struct {
	Name       string
	Role       Role
	Interfaces []Interface
	Routes     []Route
	Sysctls    []Sysctl
	// PodCIDRs of nodes: IPv4, then IPv6.
	PodCIDRs []netip.Prefix
}

// AddrV4 returns the IPv4 address of the host's first interface.
func (h Host) AddrV4() netip.Addr { return h.Interfaces[0].Addresses[0].Addr() }

// AddrV6 returns the IPv6 address of the host's first interface.
func (h Host) AddrV6() netip.Addr { return h.Interfaces[0].Addresses[1].Addr() }

// Topology is the whole lab. Hosts are ordered: client, routers, control plane, nodes.
type Topology struct {
	Hosts []Host
}

// New plans a lab with static routes between the nodes' pods.
func New(nodes, routers int) (Topology, error) { return plan(nodes, routers, false) }

// NewRouted plans a lab whose CNI routes between nodes' pods. Nodes filter strictly by reverse path.
func NewRouted(nodes, routers int) (Topology, error) { return plan(nodes, routers, true) }

func plan(nodes, routers int, ownRoutes bool) (Topology, error) {
	if nodes < 1 || nodes > MaxNodes {
		return Topology{}, fmt.Errorf("number of nodes is %d: want 1 to %d", nodes, MaxNodes)
	}
	if routers < 0 || routers > MaxRouters {
		return Topology{}, fmt.Errorf("number of routers is %d: want 0 to %d", routers, MaxRouters)
	}
	plan := planner{nodes: nodes, routers: routers, ownRoutes: ownRoutes}
	hosts := []Host{plan.client()}
	for r := 1; r <= routers; r++ {
		hosts = append(hosts, plan.router(r))
	}
	hosts = append(hosts, plan.controlPlane())
	for n := 1; n <= nodes; n++ {
		hosts = append(hosts, plan.node(n))
	}
	return Topology{Hosts: hosts}, nil
}

// Host returns the host with a name.
func (t Topology) Host(name string) (Host, bool) {
	for _, host := range t.Hosts {
		if host.Name == name {
			return host, true
		}
	}
	return Host{}, false
}

// WithRole returns the hosts with a role, in order.
func (t Topology) WithRole(role Role) []Host {
	var hosts []Host
	for _, host := range t.Hosts {
		if host.Role == role {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// ControlPlane returns the control plane host.
func (t Topology) ControlPlane() Host { return t.WithRole(RoleControlPlane)[0] }
