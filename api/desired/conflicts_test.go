// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func TestConflicts(t *testing.T) {
	low, alsoLow, high := uint32(1), uint32(1), uint32(2)
	tier := func(value string) labels.Selector { return labels.SelectorFromSet(labels.Set{"tier": value}) }
	advertisement := func(name string, med *uint32, edit func(*Advertisement)) Advertisement {
		a := Advertisement{Name: name, MED: med, Nodes: labels.Everything()}
		if edit != nil {
			edit(&a)
		}
		return a
	}
	peer := func(name string, ipv4, ipv6 bool) Peer {
		return Peer{Session: Session{Name: name, IPv4: ipv4, IPv6: ipv6}, Nodes: labels.Everything()}
	}
	first, second := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	sixth := netip.MustParseAddr("2001:db8::1")
	vips := []AdvertisedVIP{
		{Address: first, Pool: "a", Services: []labels.Set{{"tier": "front"}}},
		{Address: second, Pool: "a", Services: []labels.Set{{"tier": "back"}}},
		{Address: sixth, Pool: "b", Services: []labels.Set{{"tier": "front"}}},
	}
	peers := []Peer{peer("r1", true, false), peer("r2", true, true)}
	nodes := []labels.Set{{"tier": "front"}, {"tier": "back"}}
	for _, test := range []struct {
		name           string
		advertisements []Advertisement
		nodes          []labels.Set
		want           map[string]Conflict
	}{
		{"one", []Advertisement{advertisement("x", &low, nil)}, nodes, nil},
		{"alike", []Advertisement{advertisement("x", &low, nil), advertisement("y", &alsoLow, nil)}, nodes, nil},
		{"all", []Advertisement{advertisement("x", &low, nil), advertisement("y", &high, nil)}, nodes,
			map[string]Conflict{"y": {By: "x", Peer: "r1", VIP: first, VIPs: 3}}},
		{"absent differs", []Advertisement{advertisement("x", &low, nil), advertisement("y", nil, nil)}, nodes,
			map[string]Conflict{"y": {By: "x", Peer: "r1", VIP: first, VIPs: 3}}},
		{"aggregates differ", []Advertisement{
			advertisement("x", &low, nil), advertisement("y", &low, func(a *Advertisement) { a.Length4 = 24 }),
		}, nodes, map[string]Conflict{"y": {By: "x", Peer: "r1", VIP: first, VIPs: 3}}},
		{"three", []Advertisement{advertisement("x", &low, nil), advertisement("y", &high, nil), advertisement("z", nil, nil)}, nodes,
			map[string]Conflict{"y": {By: "x", Peer: "r1", VIP: first, VIPs: 3}, "z": {By: "x", Peer: "r1", VIP: first, VIPs: 3}}},
		{"one pool", []Advertisement{
			advertisement("x", &low, nil), advertisement("y", &high, func(a *Advertisement) { a.Pools = []string{"b"} }),
		}, nodes, map[string]Conflict{"y": {By: "x", Peer: "r2", VIP: sixth, VIPs: 1}}},
		{"other pools", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Pools = []string{"a"} }),
			advertisement("y", &high, func(a *Advertisement) { a.Pools = []string{"b"} }),
		}, nodes, nil},
		{"other pools in one aggregate", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Services, a.Length4 = tier("front"), 24 }),
			advertisement("y", &high, func(a *Advertisement) { a.Services, a.Length4 = tier("back"), 24 }),
		}, nodes, map[string]Conflict{"y": {By: "x", Peer: "r1", VIP: second, VIPs: 1, Aggregate: netip.MustParsePrefix("203.0.113.0/24")}}},
		{"other aggregates", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Services, a.Length4 = tier("front"), 31 }),
			advertisement("y", &high, func(a *Advertisement) { a.Services, a.Length4 = tier("back"), 31 }),
		}, nodes, nil},
		{"one aggregates", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Services = tier("front") }),
			advertisement("y", &high, func(a *Advertisement) { a.Services, a.Length4 = tier("back"), 24 }),
		}, nodes, nil},
		{"alike in one aggregate", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Services, a.Length4 = tier("front"), 24 }),
			advertisement("y", &alsoLow, func(a *Advertisement) { a.Services, a.Length4 = tier("back"), 24 }),
		}, nodes, nil},
		// Advertisement w announces x's VIP of the aggregate by a separate route.
		{"overruled in one aggregate", []Advertisement{
			advertisement("w", &low, func(a *Advertisement) { a.Services = tier("front") }),
			advertisement("x", &low, func(a *Advertisement) { a.Services, a.Length4, a.Pools = tier("front"), 24, []string{"a"} }),
			advertisement("y", &high, func(a *Advertisement) { a.Services, a.Length4 = tier("back"), 24 }),
		}, nodes, map[string]Conflict{"x": {By: "w", Peer: "r1", VIP: first, VIPs: 1}}},
		{"labels of Services", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Services = tier("back") }), advertisement("y", &high, nil),
		}, nodes, map[string]Conflict{"y": {By: "x", Peer: "r1", VIP: second, VIPs: 1}}},
		{"other nodes", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Nodes = tier("front") }),
			advertisement("y", &high, func(a *Advertisement) { a.Nodes = tier("back") }),
		}, nodes, nil},
		{"no such node", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Nodes = tier("front") }), advertisement("y", &high, nil),
		}, nodes[1:], nil},
		{"other peers", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Peers = []string{"r1"} }),
			advertisement("y", &high, func(a *Advertisement) { a.Peers = []string{"r2"} }),
		}, nodes, nil},
		{"a peer without the family", []Advertisement{
			advertisement("x", &low, func(a *Advertisement) { a.Peers = []string{"r1"} }),
			advertisement("y", &high, func(a *Advertisement) { a.Pools = []string{"b"} }),
		}, nodes, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.want == nil {
				test.want = map[string]Conflict{}
			}
			if got := Conflicts(test.advertisements, peers, test.nodes, slices.Values(vips)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
