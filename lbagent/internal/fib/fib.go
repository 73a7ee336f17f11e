// SPDX-License-Identifier: Apache-2.0

// Package fib computes prepared next hops to other nodes from the kernel's routes, interfaces and
// neighbors. Nodes are distributed over the paths of a multipath route. Without a prepared hop the program
// looks up the route for each packet. It is pure.
package fib

import (
	"math"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Target is the address pair for encapsulated packets to a node.
type Target struct {
	// Source is this node's address, Destination the other node's.
	Source, Destination netip.Addr
}

// Targets returns the addresses for encapsulation: IPv4 if both nodes have it, else IPv6. Nodes without a
// common family have no target.
func Targets(self forwarding.Self, nodes map[forwarding.NodeID]forwarding.Node) map[forwarding.NodeID]Target {
	targets := make(map[forwarding.NodeID]Target, len(nodes))
	for id, node := range nodes {
		switch {
		case self.IPv4.IsValid() && node.IPv4.IsValid():
			targets[id] = Target{Source: self.IPv4, Destination: node.IPv4}
		case self.IPv6.IsValid() && node.IPv6.IsValid():
			targets[id] = Target{Source: self.IPv6, Destination: node.IPv6}
		}
	}
	return targets
}

// Route is the kernel's route to a Target.
type Route struct {
	Interface int
	// Gateway is the next router, or invalid if the target is on the link.
	Gateway netip.Addr
	// MTU in bytes is the MTU of the route or of the learned path; zero if there is no limit.
	MTU int
}

// Interface is a network interface of a route.
type Interface struct {
	MAC [6]byte
	MTU int
	Up  bool
	// Lower is the lower interface of an 802.1Q device; zero for other interfaces.
	Lower int
	VLAN  uint16
}

// NeighbourKey identifies an entry of the kernel's neighbor tables.
type NeighbourKey struct {
	Interface int
	Address   netip.Addr
}

// Neighbour is an entry of the kernel's neighbor tables.
type Neighbour struct {
	MAC [6]byte
	// Persistent is true if the entry is permanent, or managed by the kernel, and so remains valid.
	Persistent bool
}

// Network is a snapshot of the kernel's network configuration.
type Network struct {
	Routes     map[Target]Route
	Interfaces map[int]Interface
	Neighbours map[NeighbourKey]Neighbour
	// Devices maps the index of each interface that runs the XDP program to the indexes of the interfaces
	// that the program receives frames on. For a bond these are its members.
	Devices map[int][]int
	// Paths are the indexes of all interfaces that the kernel may use to reach a target, now or after a
	// failure.
	Paths map[Target][]int
}

// Ingress returns the interfaces, sorted, that packets of each node may arrive on: the interfaces that
// this node may use to send to it. Nodes with no known interface, or more than limit, are missing.
func (n *Network) Ingress(targets map[forwarding.NodeID]Target, limit int) map[forwarding.NodeID][]int {
	ingress := make(map[forwarding.NodeID][]int, len(targets))
	for id, target := range targets {
		var found []int
		for _, link := range n.Paths[target] {
			found = append(found, n.Devices[n.deviceOf(link)]...)
		}
		slices.Sort(found)
		found = slices.Compact(found)
		if len(found) > 0 && len(found) <= limit {
			ingress[id] = found
		}
	}
	return ingress
}

// deviceOf returns the interface below a VLAN, or below a VLAN in a VLAN.
func (n *Network) deviceOf(link int) int {
	// The kernel stacks at most eight.
	for range 8 {
		lower := n.Interfaces[link].Lower
		if lower == 0 {
			break
		}
		link = lower
	}
	return link
}

// Hops returns the next hops to the targets with a resolved neighbor and interfaces that the program can
// use.
func (n *Network) Hops(targets map[forwarding.NodeID]Target) map[forwarding.NodeID]forwarding.Hop {
	hops := make(map[forwarding.NodeID]forwarding.Hop, len(targets))
	for id, target := range targets {
		hop, key, ok := n.prepare(target)
		neighbour := n.Neighbours[key]
		if !ok || neighbour.MAC == [6]byte{} {
			continue
		}
		hop.Destination = neighbour.MAC
		hops[id] = hop
	}
	return hops
}

// Needed returns the neighbors that hops to the targets depend on, resolved or not.
func (n *Network) Needed(targets map[forwarding.NodeID]Target) map[NeighbourKey]struct{} {
	needed := map[NeighbourKey]struct{}{}
	for _, target := range targets {
		if _, key, ok := n.prepare(target); ok {
			needed[key] = struct{}{}
		}
	}
	return needed
}

// prepare returns the hop to a target without the neighbor's address, and the neighbor's key.
func (n *Network) prepare(target Target) (forwarding.Hop, NeighbourKey, bool) {
	route, found := n.Routes[target]
	device, known := n.Interfaces[route.Interface]
	if !found || !known || !device.Up {
		return forwarding.Hop{}, NeighbourKey{}, false
	}
	hop := forwarding.Hop{Interface: route.Interface, Source: device.MAC, MTU: min(device.MTU, math.MaxUint16)}
	if route.MTU > 0 {
		hop.MTU = min(hop.MTU, route.MTU)
	}
	if device.Lower != 0 {
		lower, known := n.Interfaces[device.Lower]
		// The program can add only one tag.
		if !known || !lower.Up || lower.Lower != 0 {
			return forwarding.Hop{}, NeighbourKey{}, false
		}
		hop.Interface, hop.VLAN, hop.MTU = device.Lower, device.VLAN, min(hop.MTU, lower.MTU)
	}
	_, sends := n.Devices[hop.Interface]
	key := NeighbourKey{Interface: route.Interface, Address: target.Destination}
	if route.Gateway.IsValid() {
		key.Address = route.Gateway
	}
	return hop, key, sends && device.MAC != [6]byte{} && hop.MTU > 0
}
