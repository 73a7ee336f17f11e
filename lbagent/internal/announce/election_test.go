// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

var segment = netip.MustParsePrefix("203.0.113.0/24")

// cluster is a model of nodes 1 to n that can all answer for the VIP, from the view of self.
func cluster(n int, self forwarding.NodeID) *model.Model {
	m := base()
	m.Self.ID = self
	m.Peers, m.NextHops = nil, nil
	m.Advertisements = []model.Advertisement{{Name: "lan", L2: true}}
	m.L2 = m.Advertisements
	m.Nodes, m.Reach = nil, map[forwarding.NodeID]map[string][]netip.Prefix{}
	for id := forwarding.NodeID(1); int(id) <= n; id++ {
		m.Nodes = append(m.Nodes, model.Node{ID: id, Name: fmt.Sprintf("node%d", id)})
		m.Reach[id] = map[string][]netip.Prefix{"lan": {segment}}
	}
	return m
}

func leaderOf(m *model.Model, vip netip.Addr, silent ...forwarding.NodeID) forwarding.NodeID {
	node := &Node{Silent: map[forwarding.NodeID]bool{}}
	for _, id := range silent {
		node.Silent[id] = true
	}
	elected := elect(m, &model.VIP{Address: vip, Pool: "public"}, m.Frontends, node)
	if elected.leader == nil {
		return 0
	}
	return elected.leader.ID
}

func vipNumber(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}) }

// All nodes elect the same leader, and a change of a node moves only its own VIPs.
func TestElectionIsMinimallyDisruptive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "nodes")
		gone := forwarding.NodeID(rapid.IntRange(1, n).Draw(t, "gone"))
		how := rapid.SampledFrom([]string{"down", "silent", "booting", "departing", "unplugged"}).Draw(t, "how")
		for i := range 64 {
			vip := vipNumber(i)
			before := leaderOf(cluster(n, 1), vip)
			for self := 1; self <= n; self++ {
				if got := leaderOf(cluster(n, forwarding.NodeID(self)), vip); got != before {
					t.Fatalf("node %d selects %d for %s, node 1 selects %d", self, got, vip, before)
				}
			}
			self := forwarding.NodeID(1)
			if gone == self {
				self = 2
			}
			m, silent := cluster(n, self), []forwarding.NodeID(nil)
			switch how {
			case "down":
				m.Nodes[gone-1].Down = true
			case "silent":
				silent = append(silent, gone)
			case "booting":
				m.Nodes[gone-1].Booting = true
			case "departing":
				m.Nodes[gone-1].Draining = millracev1beta1.DrainReasonCordoned
			case "unplugged":
				delete(m.Reach, gone)
			}
			after := leaderOf(m, vip, silent...)
			if after == gone || after == 0 || before != gone && after != before {
				t.Fatalf("%s of node %d moves %s from node %d to %d", how, gone, vip, before, after)
			}
		}
	})
}

// No node answers for more than 4/3 of its share of VIPs.
func TestElectionSpreads(t *testing.T) {
	const nodes, vips = 5, 5000
	m := cluster(nodes, 1)
	m.Reach = map[forwarding.NodeID]map[string][]netip.Prefix{}
	for id := forwarding.NodeID(1); id <= nodes; id++ {
		m.Reach[id] = map[string][]netip.Prefix{"lan": {everyIPv4}}
	}
	counts := map[forwarding.NodeID]int{}
	for i := range vips {
		counts[leaderOf(m, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))]++
	}
	for id := forwarding.NodeID(1); id <= nodes; id++ {
		if part := vips / nodes; counts[id] < part*2/3 || counts[id] > part*4/3 {
			t.Errorf("node %d answers for %d of %d VIPs: %v", id, counts[id], vips, counts)
		}
	}
}

func TestElection(t *testing.T) {
	local := func(m *model.Model, weights map[forwarding.NodeID]uint32) {
		m.Frontends[0].Local, m.Frontends[0].Weights = true, weights
	}
	for name, test := range map[string]struct {
		change func(*model.Model)
		among  []forwarding.NodeID
	}{
		"all nodes are candidates":             {func(*model.Model) {}, []forwarding.NodeID{1, 2, 3}},
		"one node without a link":              {func(m *model.Model) { delete(m.Reach, 1) }, []forwarding.NodeID{2, 3}},
		"no node has a link":                   {func(m *model.Model) { m.Reach = nil }, nil},
		"other networks":                       {func(m *model.Model) { m.Reach[1]["lan"], m.Reach[2]["lan"] = nil, nil }, []forwarding.NodeID{3}},
		"link of another advertisement":        {func(m *model.Model) { m.Reach[1] = map[string][]netip.Prefix{"other": {segment}} }, []forwarding.NodeID{2, 3}},
		"endpoints on two nodes, policy Local": {func(m *model.Model) { local(m, map[forwarding.NodeID]uint32{1: 1, 3: 2}) }, []forwarding.NodeID{1, 3}},
		"no endpoints":                         {func(m *model.Model) { m.Frontends[0].Weights = nil }, []forwarding.NodeID{1, 2, 3}},
		"no endpoints, policy Local":           {func(m *model.Model) { local(m, nil) }, []forwarding.NodeID{1, 2, 3}},
		"all nodes drain":                      {func(m *model.Model) { depart3(m, 1, 2, 3) }, []forwarding.NodeID{1, 2, 3}},
		"the node with endpoints drains":       {func(m *model.Model) { local(m, map[forwarding.NodeID]uint32{2: 1}); depart3(m, 2) }, []forwarding.NodeID{2}},
		"not selected by an advertisement":     {func(m *model.Model) { m.L2 = []model.Advertisement{{Name: "lan", L2: true, Pools: []string{"other"}}} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			found := map[forwarding.NodeID]bool{}
			for i := range 256 {
				m := cluster(3, 1)
				test.change(m)
				found[leaderOf(m, vipNumber(i))] = true
			}
			for _, id := range test.among {
				if !found[id] {
					t.Errorf("node %d is never selected: %v", id, found)
				}
			}
			if want := max(len(test.among), 1); len(found) != want {
				t.Errorf("selected nodes %v, want %v", found, test.among)
			}
		})
	}
}

func depart3(m *model.Model, nodes ...forwarding.NodeID) {
	for _, id := range nodes {
		m.Nodes[id-1].Draining = millracev1beta1.DrainReasonCordoned
	}
}

func TestDecideLayer2(t *testing.T) {
	links := map[string][]Link{"lan": {{"eth0", segment}}}
	leads := func(m *model.Model) { delete(m.Reach, 2) }
	follows := func(m *model.Model) { delete(m.Reach, 1) }
	withPeers := func(m *model.Model) {
		with := base()
		m.Peers, m.NextHops = with.Peers, with.NextHops
		m.Advertisements = append(m.Advertisements, model.Advertisement{Name: "bgp"})
	}
	for name, test := range map[string]struct {
		change     func(*model.Model)
		node       func(*Node)
		reason     string
		interfaces []string
		peers      int
	}{
		"leader":                   {leads, nil, "", []string{"eth0"}, 0},
		"another node is leader":   {follows, nil, ReasonOtherNodeSelected, nil, 0},
		"no leader":                {func(m *model.Model) { m.Reach = nil }, nil, ReasonNoLink, nil, 0},
		"leader without a link":    {leads, func(n *Node) { n.Links = nil }, ReasonNoLink, nil, 0},
		"leader, with BGP":         {func(m *model.Model) { leads(m); withPeers(m) }, nil, "", []string{"eth0"}, 2},
		"another leader, with BGP": {func(m *model.Model) { follows(m); withPeers(m) }, nil, "", nil, 2},
		"no programs on the uplink of its peers": {
			func(m *model.Model) { leads(m); withPeers(m) },
			func(n *Node) { n.Unattached = map[string]string{"r1": "eth1", "r2": "eth1"} }, "", []string{"eth0"}, 0,
		},
		"not programmed": {leads, func(n *Node) { n.Programmed = forwarding.NewState() }, ReasonNotProgrammed, nil, 0},
		"duplicate address": {leads, func(n *Node) {
			n.Duplicates = map[netip.Addr]Decision{vip4: {Reason: ReasonDuplicate, Message: "a host"}}
		}, ReasonDuplicate, nil, 0},
		"no endpoints": {func(m *model.Model) { leads(m); m.Frontends[0].Weights = nil }, nil, ReasonNoEndpoints, nil, 0},
		"terminating endpoints only": {func(m *model.Model) {
			leads(m)
			m.Frontends[0].Local, m.Frontends[0].Terminating = true, true
		}, nil, "", []string{"eth0"}, 0},
		"final shutdown of the agent": {leads, func(n *Node) { n.Final, n.Phase = true, Drained }, ReasonNodeDraining, nil, 0},
		"releases the address": {func(m *model.Model) {
			leads(m)
			m.VIPs[0].Release = millracev1beta1.ReleaseWithdrawn
		}, nil, ReasonReleasing, nil, 0},
		"not selected": {func(m *model.Model) { m.Advertisements = nil }, nil, ReasonNotSelected, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := cluster(2, 1)
			test.change(m)
			state := planned(m)
			node := nodeWith(state, state)
			node.Links = links
			if test.node != nil {
				test.node(node)
			}
			routes, decisions := Decide(m, node)
			got := decisions[0]
			if got.Reason != test.reason || !slices.Equal(got.Interfaces, test.interfaces) || len(got.Peers) != test.peers || len(routes) != test.peers {
				t.Errorf("decision %+v, routes %v", got, routes)
			}
			if elsewhere := len(m.Reach) > 0 && m.Reach[1] == nil; got.Elsewhere != elsewhere {
				t.Errorf("Elsewhere = %v", got.Elsewhere)
			}
			observed := got.Observed(Sessions{})
			if len(test.interfaces) > 0 && !slices.Equal(observed.Peers, []string{"l2:eth0"}) {
				t.Errorf("observed decision %+v", observed)
			}
		})
	}
}

func TestReach(t *testing.T) {
	network := func(name, prefix string) model.Network {
		return model.Network{Interface: name, Prefix: netip.MustParsePrefix(prefix)}
	}
	networks := []model.Network{
		network("eth0", "198.51.100.0/24"), network("eth0", "2001:db8::/64"), network("eth0", "fe80::/64"),
		network("eth0", "192.0.2.1/32"), network("eth0", "198.51.100.0/24"), network("eth1", "203.0.113.0/24"), network("lo", "127.0.0.0/8"),
	}
	m := &model.Model{Advertisements: []model.Advertisement{
		{Name: "all", L2: true}, {Name: "bgp"}, {Name: "named", L2: true, Interfaces: []string{"eth0", "eth1", "eth2"}},
		{Name: "other", L2: true, Interfaces: []string{"eth7"}},
	}}
	got := Reach(m, networks, []string{"eth0", "eth2"})
	want := map[string][]Link{
		"all":   {{"eth0", netip.MustParsePrefix("198.51.100.0/24")}, {"eth0", netip.MustParsePrefix("2001:db8::/64")}},
		"named": {{"eth0", everyIPv4}, {"eth0", everyIPv6}, {"eth2", everyIPv4}, {"eth2", everyIPv6}},
	}
	if len(got) != len(want) || !slices.Equal(got["all"], want["all"]) || !slices.Equal(got["named"], want["named"]) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A cut-off node answers only for VIPs without endpoints on lost nodes.
func TestLayer2CutOff(t *testing.T) {
	for name, test := range map[string]struct {
		weights         map[forwarding.NodeID]uint32
		local, isPair   bool
		held, unreached bool
		want            string
	}{
		"endpoints on a held node":        {weights: map[forwarding.NodeID]uint32{1: 1, 2: 1}, held: true, want: millracev1beta1.ReasonNodeIsolated},
		"endpoints on a dead node":        {weights: map[forwarding.NodeID]uint32{1: 1}, unreached: true, want: millracev1beta1.ReasonNodeIsolated},
		"Local, endpoints on a held node": {weights: map[forwarding.NodeID]uint32{1: 1, 2: 1}, local: true, held: true, want: millracev1beta1.ReasonNodeIsolated},
		"local endpoints only":            {weights: map[forwarding.NodeID]uint32{1: 1}, held: true},
		"one of two nodes":                {weights: map[forwarding.NodeID]uint32{1: 1, 2: 1}, held: true, isPair: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := cluster(3, 1)
			m.CutOff = !test.isPair
			m.Frontends[0].Weights, m.Frontends[0].Local, m.Frontends[0].Unreached = test.weights, test.local, test.unreached
			state := planned(m)
			node := nodeWith(state, state)
			node.Links = map[string][]Link{"lan": {{"eth0", segment}}}
			node.Held = map[forwarding.NodeID]bool{2: test.held, 3: test.held}
			node.Silent = node.Held
			if m.Nodes[1].Down, m.Nodes[2].Down = test.unreached, test.unreached; !test.held {
				node.Held, node.Silent = nil, nil
			}
			_, decisions := Decide(m, node)
			got := decisions[0]
			if got.Reason != test.want || (len(got.Interfaces) > 0) != (test.want == "") || got.Elsewhere != (test.want != "") {
				t.Errorf("decision %+v, want reason %q", got, test.want)
			}
		})
	}
}

func TestDeciderLayer2(t *testing.T) {
	links := map[string][]Link{"lan": {{"eth0", segment}}}
	for name, change := range map[string]func(*model.Model, *Node){
		"the other node is down":   func(m *model.Model, _ *Node) { m.Nodes = slices.Clone(m.Nodes); m.Nodes[1].Down = true },
		"the other node is silent": func(_ *model.Model, n *Node) { n.Silent = map[forwarding.NodeID]bool{2: true} },
		"the other node has no link": func(m *model.Model, _ *Node) {
			m.Reach = map[forwarding.NodeID]map[string][]netip.Prefix{1: m.Reach[1]}
		},
		"this node has no link": func(_ *model.Model, n *Node) { n.Links = nil },
		"advertisement removed": func(m *model.Model, _ *Node) { m.L2 = nil },
	} {
		t.Run(name, func(t *testing.T) {
			before := cluster(2, 1)
			before.VIPs = nil
			for i := range 20 {
				vip := base().VIPs[0]
				vip.Address = vipNumber(i)
				before.VIPs = append(before.VIPs, vip)
			}
			slices.SortFunc(before.VIPs, func(a, b model.VIP) int { return a.Address.Compare(b.Address) })
			frontend := *before.Frontends[0]
			before.Frontends = nil
			for i := range before.VIPs {
				own := frontend
				own.Key.VIP = before.VIPs[i].Address
				before.Frontends = append(before.Frontends, &own)
			}
			limits := limits
			limits.Frontends, limits.VIPs, limits.NodeTables, limits.EndpointTables = 100, 100, 100, 100
			state, _ := plan.NewPlanner(forwarding.NewState()).Plan(forwarding.NewState(), before, limits)
			node := nodeWith(state, state)
			node.Links = links
			decider := Decider{}
			decider.Decide(before, Change{}, node)
			after, next := *before, *node
			change(&after, &next)
			_, got := decider.Decide(&after, Change{Model: &model.Changes{Since: before}, Maps: &forwarding.Entries{}}, &next)
			_, want := Decide(&after, &next)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("decision %+v, want %+v", got, want)
			}
		})
	}
}
