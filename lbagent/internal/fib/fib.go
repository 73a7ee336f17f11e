// SPDX-License-Identifier: Apache-2.0

// Package fib turns what the kernel knows of routes, interfaces and
// neighbours into the prepared next hops towards the other nodes. It is pure: no
// I/O, clock or logger.
//
// A route with several paths gives one of them, the same one for all packets to
// a node; nodes spread over the paths. Where no hop can be prepared the program
// asks the kernel for each packet.
package fib

import (
	"math"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Target is where encapsulated packets to a node are sent.
type Target struct {
	// Source is this node's address, Destination the other node's.
	Source, Destination netip.Addr
}

// Targets are the addresses that the program encapsulates with: IPv4 where both
// nodes have it, else IPv6. A node without a common family has no target.
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

// Route is the kernel's answer for a Target.
type Route struct {
	// Interface is the index of the interface that packets leave by.
	Interface int
	// Gateway is the next router; not valid where the target is on the link.
	Gateway netip.Addr
	// MTU in bytes is the route's own, or that of the path as the kernel has
	// learnt it; zero where it has none.
	MTU int
}

// Interface is a network interface that routes lead to.
type Interface struct {
	MAC [6]byte
	// MTU in bytes.
	MTU int
	// Up is true when it is up and has carrier.
	Up bool
	// Lower is what an 802.1Q device lies on and tags the frames of; zero for
	// every other interface.
	Lower int
	// VLAN is the number of the VLAN of an 802.1Q device.
	VLAN uint16
}

// NeighbourKey names an entry of the kernel's neighbour tables.
type NeighbourKey struct {
	Interface int
	Address   netip.Addr
}

// Neighbour is an entry of the kernel's neighbour tables.
type Neighbour struct {
	// MAC is zero while the kernel does not know it.
	MAC [6]byte
	// Kept is whether the entry stays, and somebody sees to it that it is right: the kernel, which was
	// told so, or who made it.
	Kept bool
}

// Network is what the kernel knows.
type Network struct {
	Routes     map[Target]Route
	Interfaces map[int]Interface
	Neighbours map[NeighbourKey]Neighbour
	// Devices are the interfaces that run the XDP program, by their indexes: the indexes of
	// those by which the program sees frames come in. Those of a bond come in by its members.
	Devices map[int][]int
	// Leads are the indexes of all interfaces by which the kernel may send to a target, or
	// would if others failed.
	Leads map[Target][]int
}

// Ingress are the interfaces, in ascending order, by which the packets of those nodes come in:
// the ones by which this node may send to them. A node is missing where none is known, or more
// than limit are.
func (n *Network) Ingress(targets map[forwarding.NodeID]Target, limit int) map[forwarding.NodeID][]int {
	ingress := make(map[forwarding.NodeID][]int, len(targets))
	for id, target := range targets {
		var found []int
		for _, link := range n.Leads[target] {
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

// deviceOf goes down from a VLAN, or a VLAN in a VLAN, to what is below.
func (n *Network) deviceOf(link int) int {
	// The kernel stacks no more than eight.
	for range 8 {
		lower := n.Interfaces[link].Lower
		if lower == 0 {
			break
		}
		link = lower
	}
	return link
}

// Hops are the next hops to those targets whose way is known and passes
// interfaces that the program can use.
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

// Needed are the neighbours that hops to the targets depend on, resolved or not.
func (n *Network) Needed(targets map[forwarding.NodeID]Target) map[NeighbourKey]struct{} {
	needed := map[NeighbourKey]struct{}{}
	for _, target := range targets {
		if _, key, ok := n.prepare(target); ok {
			needed[key] = struct{}{}
		}
	}
	return needed
}

// prepare gives the hop to a target as far as it does not depend on the
// neighbour, and the neighbour.
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
		// The program sends one tag.
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
