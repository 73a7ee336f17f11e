// SPDX-License-Identifier: Apache-2.0

package fib

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var (
	self4, self6 = addr("198.51.100.1"), addr("2001:db8::1")
	near4        = addr("198.51.100.2")
	far4, far6   = addr("203.0.113.2"), addr("2001:db8:1::2")
	gateway6     = addr("fe80::1")
	macA, macB   = [6]byte{2, 0, 0, 0, 0, 0xa}, [6]byte{2, 0, 0, 0, 0, 0xb}
	macN         = [6]byte{2, 0, 0, 0, 0, 0xf}
)

func TestTargets(t *testing.T) {
	nodes := map[forwarding.NodeID]forwarding.Node{
		1: {IPv4: near4, IPv6: far6},
		2: {IPv4: far4},
		3: {IPv6: far6},
		4: {},
	}
	for name, test := range map[string]struct {
		self forwarding.Self
		want map[forwarding.NodeID]Target
	}{
		"both families": {
			forwarding.Self{IPv4: self4, IPv6: self6},
			map[forwarding.NodeID]Target{1: {self4, near4}, 2: {self4, far4}, 3: {self6, far6}},
		},
		"IPv4 only": {forwarding.Self{IPv4: self4}, map[forwarding.NodeID]Target{1: {self4, near4}, 2: {self4, far4}}},
		"IPv6 only": {forwarding.Self{IPv6: self6}, map[forwarding.NodeID]Target{1: {self6, far6}, 3: {self6, far6}}},
		"none":      {forwarding.Self{}, map[forwarding.NodeID]Target{}},
	} {
		if got := Targets(test.self, nodes); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

const (
	eth0, bond0, vlan100, inner, gre0 = 2, 3, 4, 5, 6
)

// newNetwork returns a network with a node on the link of eth0, and one behind a router on VLAN 100 of a
// bond.
func newNetwork() (*Network, map[forwarding.NodeID]Target) {
	near, far := Target{self4, near4}, Target{self6, far6}
	return &Network{
		Routes: map[Target]Route{
			near: {Interface: eth0},
			far:  {Interface: vlan100, Gateway: gateway6},
		},
		Interfaces: map[int]Interface{
			eth0:    {MAC: macA, MTU: 1500, Up: true},
			bond0:   {MAC: macB, MTU: 9000, Up: true},
			vlan100: {MAC: macB, MTU: 9000, Up: true, Lower: bond0, VLAN: 100},
			inner:   {MAC: macB, MTU: 9000, Up: true, Lower: vlan100, VLAN: 7},
			gre0:    {MTU: 1400, Up: true},
		},
		Neighbours: map[NeighbourKey]Neighbour{
			{eth0, near4}:       {MAC: macN},
			{vlan100, gateway6}: {MAC: macN},
		},
		Devices: map[int][]int{eth0: {eth0}, bond0: {7, 8}},
	}, map[forwarding.NodeID]Target{1: near, 2: far}
}

func TestHops(t *testing.T) {
	near := forwarding.Hop{Interface: eth0, Source: macA, Destination: macN, MTU: 1500}
	far := forwarding.Hop{Interface: bond0, VLAN: 100, Source: macB, Destination: macN, MTU: 9000}
	nearTarget, farTarget := Target{self4, near4}, Target{self6, far6}
	change := func(n *Network, index int, change func(*Interface)) {
		i := n.Interfaces[index]
		change(&i)
		n.Interfaces[index] = i
	}
	type hops = map[forwarding.NodeID]forwarding.Hop
	with := func(hop forwarding.Hop, change func(*forwarding.Hop)) forwarding.Hop {
		change(&hop)
		return hop
	}
	for name, test := range map[string]struct {
		change func(*Network)
		want   hops
		needed int
	}{
		"unchanged":         {func(*Network) {}, hops{1: near, 2: far}, 2},
		"no route":          {func(n *Network) { delete(n.Routes, nearTarget) }, hops{2: far}, 1},
		"no interface":      {func(n *Network) { delete(n.Interfaces, eth0) }, hops{2: far}, 1},
		"no lower device":   {func(n *Network) { delete(n.Interfaces, bond0) }, hops{1: near}, 1},
		"down":              {func(n *Network) { change(n, eth0, func(i *Interface) { i.Up = false }) }, hops{2: far}, 1},
		"lower device down": {func(n *Network) { change(n, bond0, func(i *Interface) { i.Up = false }) }, hops{1: near}, 1},
		"unknown neighbour": {
			func(n *Network) { delete(n.Neighbours, NeighbourKey{eth0, near4}) }, hops{2: far}, 2,
		},
		"resolving neighbour": {
			func(n *Network) { n.Neighbours[NeighbourKey{eth0, near4}] = Neighbour{Persistent: true} }, hops{2: far}, 2,
		},
		"neighbour on another interface": {
			func(n *Network) {
				delete(n.Neighbours, NeighbourKey{eth0, near4})
				n.Neighbours[NeighbourKey{bond0, near4}] = Neighbour{MAC: macN}
			}, hops{2: far}, 2,
		},
		"no program on the interface": {func(n *Network) { delete(n.Devices, eth0) }, hops{2: far}, 1},
		"no program below the VLAN":   {func(n *Network) { delete(n.Devices, bond0) }, hops{1: near}, 1},
		"two tags":                    {func(n *Network) { n.Routes[farTarget] = Route{Interface: inner, Gateway: gateway6} }, hops{1: near}, 1},
		"not Ethernet": {
			func(n *Network) { n.Routes[nearTarget], n.Devices[gre0] = Route{Interface: gre0}, []int{gre0} }, hops{2: far}, 1,
		},
		"path MTU": {
			func(n *Network) { n.Routes[nearTarget] = Route{Interface: eth0, MTU: 1400} },
			hops{1: with(near, func(h *forwarding.Hop) { h.MTU = 1400 }), 2: far}, 2,
		},
		"route MTU above that of the interface": {
			func(n *Network) { n.Routes[nearTarget] = Route{Interface: eth0, MTU: 9000} }, hops{1: near, 2: far}, 2,
		},
		"MTU below the VLAN": {
			func(n *Network) { change(n, bond0, func(i *Interface) { i.MTU = 1500 }) },
			hops{1: near, 2: with(far, func(h *forwarding.Hop) { h.MTU = 1500 })}, 2,
		},
		"MTU above the maximum of IP": {
			func(n *Network) { change(n, eth0, func(i *Interface) { i.MTU = 65536 }) },
			hops{1: with(near, func(h *forwarding.Hop) { h.MTU = 65535 }), 2: far}, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, targets := newNetwork()
			test.change(n)
			if got := n.Hops(targets); !reflect.DeepEqual(got, test.want) {
				t.Errorf("hops %+v, want %+v", got, test.want)
			}
			if got := len(n.Needed(targets)); got != test.needed {
				t.Errorf("%d neighbours required, want %d", got, test.needed)
			}
		})
	}
}

func TestIngress(t *testing.T) {
	n, targets := newNetwork()
	near, far := targets[1], targets[2]
	n.Interfaces[inner] = Interface{Lower: vlan100}
	type ingress = map[forwarding.NodeID][]int
	for name, test := range map[string]struct {
		leads map[Target][]int
		limit int
		want  ingress
	}{
		"own index":                   {map[Target][]int{near: {eth0}}, 8, ingress{1: {eth0}}},
		"VLAN on a bond":              {map[Target][]int{far: {vlan100}}, 8, ingress{2: {7, 8}}},
		"two VLANs":                   {map[Target][]int{far: {inner}}, 8, ingress{2: {7, 8}}},
		"several routes":              {map[Target][]int{near: {vlan100, eth0, eth0}}, 8, ingress{1: {eth0, 7, 8}}},
		"above the limit":             {map[Target][]int{near: {vlan100, eth0}, far: {eth0}}, 2, ingress{2: {eth0}}},
		"no program on the interface": {map[Target][]int{near: {gre0}}, 8, ingress{}},
		"no route":                    {nil, 8, ingress{}},
	} {
		n.Paths = test.leads
		if got := n.Ingress(targets, test.limit); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
