// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

var (
	vip4     = netip.MustParseAddr("203.0.113.1")
	vip6     = netip.MustParseAddr("2001:db8:1::1")
	node4    = netip.MustParseAddr("198.51.100.1")
	node6    = netip.MustParseAddr("2001:db8::1")
	endpoint = forwarding.Endpoint{Address: netip.MustParseAddr("198.18.0.1"), Port: 8080}
	web      = model.ServiceName{Namespace: "default", Name: "web"}
	other    = model.ServiceName{Namespace: "default", Name: "other"}
	limits   = forwarding.Limits{Frontends: 10, NodeTables: 10, EndpointTables: 10, Endpoints: 10, VIPs: 10, SourceRanges: 10}
)

func labelled(value string) labels.Selector {
	return labels.SelectorFromSet(labels.Set{"tier": value})
}

// base is a model with a VIP announced to both peers, with a Cluster Service and endpoints on this node and
// another.
func base() *model.Model {
	return &model.Model{
		Self: forwarding.Self{ID: 1, IPv4: node4, IPv6: node6},
		Nodes: []model.Node{
			{ID: 1, Node: forwarding.Node{IPv4: node4}},
			{ID: 2, Node: forwarding.Node{IPv4: netip.MustParseAddr("198.51.100.2")}},
		},
		VIPs: []model.VIP{{
			Address: vip4, Pool: "public",
			Services: []model.VIPService{{Name: web, Labels: map[string]string{"tier": "front"}}},
		}},
		Frontends: []*model.Frontend{{
			Key:     forwarding.FrontendKey{VIP: vip4, Port: 80, Protocol: forwarding.ProtocolTCP},
			Service: web, PortName: "http",
			Weights: map[forwarding.NodeID]uint32{1: 1, 2: 1}, Endpoints: []forwarding.Endpoint{endpoint},
		}},
		Peers: []model.Peer{
			{Name: "r1", ASN: 64512, LocalASN: 64513, IPv4: true, IPv6: true},
			{Name: "r2", ASN: 64513, LocalASN: 64513, IPv4: true},
		},
		NextHops:       map[string]model.NextHops{"r1": {IPv4: node4, IPv6: node6}, "r2": {IPv4: node4, IPv6: node6}},
		Advertisements: []model.Advertisement{{Name: "all"}},
	}
}

func planned(m *model.Model) *forwarding.State {
	state, _ := plan.NewPlanner(forwarding.NewState()).Plan(forwarding.NewState(), m, limits)
	return state
}

func nodeWith(programmed, want *forwarding.State) *Node {
	return &Node{Programmed: programmed, Planned: want}
}

// Each case changes base in one way. The maps match the changed model unless the case changes them.
func TestDecide(t *testing.T) {
	both := []string{"r1", "r2"}
	key := base().Frontends[0].Key
	second := forwarding.FrontendKey{VIP: vip4, Port: 443, Protocol: forwarding.ProtocolTCP}
	before := map[netip.Addr]bool{vip4: true}
	secondService := func(m *model.Model) {
		m.VIPs[0].Services = append(m.VIPs[0].Services, model.VIPService{Name: other, Labels: map[string]string{"tier": "back"}})
		m.Frontends = append(m.Frontends, &model.Frontend{
			Key: second, Service: other,
			Weights: map[forwarding.NodeID]uint32{},
		})
	}
	restrict := func(number int) func(*model.Model) {
		return func(m *model.Model) {
			if number > 0 {
				secondService(m)
			}
			m.Frontends[number].Restricted = true
			m.Frontends[number].Sources = []netip.Prefix{netip.MustParsePrefix("198.51.0.0/16")}
		}
	}
	edit := func(key forwarding.FrontendKey, change func(*forwarding.Frontend)) func(*forwarding.State) {
		return func(s *forwarding.State) {
			f := s.Frontends[key]
			change(&f)
			s.Frontends[key] = f
		}
	}
	// elsewhere adds a second Local Service with an endpoint on node 2.
	elsewhere := func(m *model.Model) {
		secondService(m)
		for i := range m.Frontends {
			m.Frontends[i].Local, m.Frontends[i].Shared = true, true
		}
		m.Frontends[1].Weights = map[forwarding.NodeID]uint32{2: 1}
	}
	cases := []struct {
		name       string
		model      func(*model.Model)
		state      func(*forwarding.State)
		planned    func(*forwarding.State)
		announced  map[netip.Addr]bool
		unattached map[string]string
		duplicates map[netip.Addr]Decision
		reason     string
		peers      []string
	}{
		{name: "announced", peers: both},
		{name: "reserved", model: func(m *model.Model) { m.VIPs[0].Services, m.Frontends = nil, nil }, reason: ReasonNoService},
		{name: "no advertisement", model: func(m *model.Model) { m.Advertisements = nil }, reason: ReasonNotSelected},
		{name: "pool of the VIP", model: func(m *model.Model) { m.Advertisements[0].Pools = []string{"other", "public"} }, peers: both},
		{name: "other pool", model: func(m *model.Model) { m.Advertisements[0].Pools = []string{"other"} }, reason: ReasonNotSelected},
		{name: "labels match", model: func(m *model.Model) { m.Advertisements[0].Services = labelled("front") }, peers: both},
		{name: "labels do not match", model: func(m *model.Model) { m.Advertisements[0].Services = labelled("back") }, reason: ReasonNotSelected},
		{name: "labels of one of two Services match", model: func(m *model.Model) {
			secondService(m)
			m.Advertisements[0].Services = labelled("back")
		}, peers: both},
		{name: "one peer", model: func(m *model.Model) { m.Advertisements[0].Peers = []string{"r2", "r9"} }, peers: []string{"r2"}},
		{name: "peer of other nodes only", model: func(m *model.Model) { m.Advertisements[0].Peers = []string{"r9"} }, reason: ReasonNoPeer},
		{name: "no peers", model: func(m *model.Model) { m.Peers = nil }, reason: ReasonNoPeer},
		{name: "peer without the family", model: func(m *model.Model) { m.Peers[0].IPv4 = false }, peers: []string{"r2"}},
		{name: "duplicate address", duplicates: map[netip.Addr]Decision{
			vip4: {Reason: ReasonDuplicate, Message: "a host has it"},
		}, reason: ReasonDuplicate},
		{name: "duplicate of another address", duplicates: map[netip.Addr]Decision{
			vip4.Next(): {Reason: ReasonDuplicate, Message: "a host has it"},
		}, peers: both},
		{name: "no frontend", model: func(m *model.Model) { m.Frontends = nil }, reason: ReasonNoFrontend},
		{name: "not attached", unattached: map[string]string{"r1": "no program", "r2": "no program"}, reason: ReasonNotAttached},
		{name: "not attached to the uplink of one peer", unattached: map[string]string{"r1": "no program", "r9": "no program"}, peers: []string{"r2"}},
		{name: "VIP not programmed", state: func(s *forwarding.State) { delete(s.VIPs, vip4) }, reason: ReasonNotProgrammed},
		{name: "frontend not programmed", state: func(s *forwarding.State) { delete(s.Frontends, key) }, reason: ReasonNotProgrammed},
		{name: "one of two frontends not programmed", model: secondService, state: func(s *forwarding.State) {
			delete(s.Frontends, second)
		}, reason: ReasonNotProgrammed},
		{name: "node table not programmed", state: func(s *forwarding.State) {
			s.Frontends[key] = forwarding.Frontend{ID: 1, Endpoints: 1}
		}, reason: ReasonNotProgrammed},
		{name: "endpoint table not programmed", state: func(s *forwarding.State) {
			s.Frontends[key] = forwarding.Frontend{ID: 1, Table: 1}
		}, reason: ReasonNotProgrammed},
		{name: "programmed with the previous policy", state: func(s *forwarding.State) {
			s.Frontends[key] = forwarding.Frontend{ID: 1, Local: true, Table: 1, Endpoints: 1}
		}, reason: ReasonNotProgrammed},
		{name: "restricted", model: restrict(0), peers: both},
		{name: "source ranges not programmed", model: restrict(0), state: edit(key, func(f *forwarding.Frontend) { f.Ranges = 0 }), reason: ReasonNotProgrammed},
		{name: "closed until the source ranges fit", model: restrict(0), state: edit(key, func(f *forwarding.Frontend) { f.Ranges = forwarding.NoSources }), reason: ReasonNotProgrammed},
		{name: "announced, one of two frontends not programmed", model: secondService, announced: before, state: func(s *forwarding.State) {
			delete(s.Frontends, second)
		}, peers: both},
		{name: "announced, frontend with endpoints not programmed", model: secondService, announced: before, state: func(s *forwarding.State) {
			delete(s.Frontends, key)
		}, reason: ReasonNotProgrammed},
		{name: "one of two frontends over capacity", model: secondService, planned: func(s *forwarding.State) {
			delete(s.Frontends, second)
		}, peers: both},
		{name: "only frontend over capacity", planned: func(s *forwarding.State) { delete(s.Frontends, key) }, reason: ReasonNotProgrammed},
		{name: "announced, table over capacity", announced: before, planned: edit(key, func(f *forwarding.Frontend) { f.Table = 0 }), reason: ReasonNotProgrammed},
		{name: "announced, local endpoints over capacity", announced: before, planned: edit(key, func(f *forwarding.Frontend) { f.Endpoints = 0 }), peers: both},
		{name: "announced, still programmed with the previous policy", announced: before, state: func(s *forwarding.State) {
			s.Frontends[key] = forwarding.Frontend{ID: 1, Local: true, Endpoints: 1}
		}, peers: both},
		{name: "announced, still open to all clients", announced: before, model: restrict(0), state: edit(key, func(f *forwarding.Frontend) { f.Ranges = 0 }), reason: ReasonNotProgrammed},
		{name: "announced, other frontend still open to all clients", announced: before, model: restrict(1), state: edit(second, func(f *forwarding.Frontend) { f.Ranges = 0 }), reason: ReasonNotProgrammed},
		{name: "announced, other frontend closed", announced: before, model: restrict(1), state: edit(second, func(f *forwarding.Frontend) { f.Ranges = forwarding.NoSources }), peers: both},
		{name: "not announced yet, outdated entry", state: edit(key, func(f *forwarding.Frontend) { f.Affinity = 5 }), reason: ReasonNotProgrammed},
		{name: "zone removed last", state: edit(key, func(f *forwarding.Frontend) { f.Zones[1] = f.Table }), peers: both},
		{name: "admits no clients", model: func(m *model.Model) { m.Frontends[0].Restricted = true }, peers: both},
		{name: "Cluster, endpoints elsewhere only", model: func(m *model.Model) {
			m.Frontends[0].Weights, m.Frontends[0].Endpoints = map[forwarding.NodeID]uint32{2: 1}, nil
		}, peers: both},
		{name: "Cluster, terminating endpoints only", model: func(m *model.Model) { m.Frontends[0].Terminating = true }, peers: both},
		{name: "Cluster, no endpoints", model: func(m *model.Model) {
			m.Frontends[0].Weights, m.Frontends[0].Endpoints = nil, nil
		}, reason: ReasonNoEndpoints},
		{name: "Local, ready here", model: func(m *model.Model) { m.Frontends[0].Local = true }, peers: both},
		{name: "Local, endpoints elsewhere only", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Endpoints, m.Frontends[0].Weights = true, nil, map[forwarding.NodeID]uint32{2: 1}
		}, reason: ReasonNoLocalEndpoint},
		{name: "Local, terminating here", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Terminating = true, true
		}, reason: ReasonNoLocalEndpoint},
		{name: "Local, no endpoints", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Endpoints, m.Frontends[0].Weights = true, nil, nil
		}, reason: ReasonNoEndpoints},
		{name: "Local with affinity, ready here", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Affinity = true, 10800
		}, peers: both},
		{name: "Local with affinity, endpoints elsewhere only", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Affinity = true, 10800
			m.Frontends[0].Endpoints, m.Frontends[0].Weights = nil, map[forwarding.NodeID]uint32{2: 1}
		}, reason: ReasonNoLocalEndpoint},
		{name: "Local with affinity, node table not programmed", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Affinity = true, 10800
		}, state: func(s *forwarding.State) {
			s.Frontends[key] = forwarding.Frontend{ID: 1, Endpoints: 1, Affinity: 10800}
		}, reason: ReasonNotProgrammed},
		{name: "one of two Services has endpoints", model: secondService, peers: both},
		{name: "two Local Services, one ready here", model: elsewhere, peers: both},
		{name: "two Local Services, table of the other not programmed", model: elsewhere, state: func(s *forwarding.State) {
			s.Frontends[second] = forwarding.Frontend{ID: s.Frontends[second].ID, Local: true}
		}, reason: ReasonNotProgrammed},
		{name: "two Local Services, none here", model: func(m *model.Model) {
			secondService(m)
			for i := range m.Frontends {
				m.Frontends[i].Local, m.Frontends[i].Shared, m.Frontends[i].Endpoints = true, true, nil
				m.Frontends[i].Weights = map[forwarding.NodeID]uint32{2: 1}
			}
		}, reason: ReasonNoLocalEndpoint},
		{name: "Cluster, unready endpoint without an outage", model: func(m *model.Model) {
			m.Frontends[0].Weights, m.Frontends[0].Endpoints, m.Frontends[0].OnlyEstablished = nil, nil, true
		}, reason: ReasonNoEndpoints},
		{name: "no next hop", model: func(m *model.Model) { m.NextHops = nil }, reason: ReasonNoNextHop},
		{name: "next hop for one peer only", model: func(m *model.Model) { delete(m.NextHops, "r1") }, peers: []string{"r2"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := base()
			if c.model != nil {
				c.model(m)
			}
			slices.SortFunc(m.Frontends, func(a, b *model.Frontend) int { return a.Key.Compare(b.Key) })
			want := planned(m)
			if c.planned != nil {
				c.planned(want)
			}
			state := want.Clone()
			if c.state != nil {
				c.state(state)
			}
			routes, decisions := Decide(m, &Node{Programmed: state, Planned: want, Unattached: c.unattached, Duplicates: c.duplicates, Announced: c.announced})
			if len(decisions) != 1 || decisions[0].VIP != vip4 {
				t.Fatalf("decisions %+v, want one for %s", decisions, vip4)
			}
			decision := decisions[0]
			if decision.Reason != c.reason || !slices.Equal(decision.Peers, c.peers) {
				t.Errorf("decision %+v, want reason %q and peers %v", decision, c.reason, c.peers)
			}
			if (decision.Message == "") != (c.reason == "") {
				t.Errorf("message %q with reason %q", decision.Message, decision.Reason)
			}
			if len(routes) != len(c.peers) {
				t.Errorf("routes to %d peers, want %d", len(routes), len(c.peers))
			}
			for _, peer := range c.peers {
				want := []Route{{Prefix: netip.PrefixFrom(vip4, 32), NextHop: node4}}
				if !reflect.DeepEqual(routes[peer], want) {
					t.Errorf("routes to %s: %+v, want %+v", peer, routes[peer], want)
				}
			}
		})
	}
}

func TestAttributes(t *testing.T) {
	high, low := uint32(300), uint32(50)
	m := base()
	m.VIPs = append(m.VIPs, model.VIP{Address: vip6, Services: m.VIPs[0].Services})
	six := *m.Frontends[0]
	six.Key.VIP = vip6
	m.Frontends = append(m.Frontends, &six)
	m.Advertisements = []model.Advertisement{
		{Name: "a", Peers: []string{"r2"}, Communities: []uint32{1}, LocalPreference: &high, MED: &low, Prepend: 2},
		{Name: "b", LargeCommunities: [][3]uint32{{1, 2, 3}}, LocalPreference: &low, Prepend: 1},
	}
	routes, decisions := Decide(m, nodeWith(planned(m), planned(m)))
	want := Routes{
		// External peers ignore the local preference.
		"r1": {
			{Prefix: netip.PrefixFrom(vip4, 32), NextHop: node4, LargeCommunities: [][3]uint32{{1, 2, 3}}, Prepend: 1},
			{Prefix: netip.PrefixFrom(vip6, 128), NextHop: node6, LargeCommunities: [][3]uint32{{1, 2, 3}}, Prepend: 1},
		},
		// The first advertisement by name decides. r2 is internal and IPv4 only, so its path is not
		// prepended.
		"r2": {{Prefix: netip.PrefixFrom(vip4, 32), NextHop: node4, Communities: []uint32{1}, LocalPreference: &high, MED: &low}},
	}
	if !reflect.DeepEqual(routes, want) {
		t.Errorf("routes %+v, want %+v", routes, want)
	}
	wanted := []Decision{{VIP: vip4, Peers: []string{"r1", "r2"}}, {VIP: vip6, Peers: []string{"r1"}}}
	if !reflect.DeepEqual(decisions, wanted) {
		t.Errorf("decisions %+v, want %+v", decisions, wanted)
	}
}

func TestWeight(t *testing.T) {
	m := base()
	m.Advertisements[0].Weighed = true
	second := *m.Frontends[0]
	second.Key.Port = 443
	second.Weights = map[forwarding.NodeID]uint32{1: 3, 2: 7}
	m.Frontends = append(m.Frontends, &second)
	for _, test := range []struct {
		name string
		edit func(first, second *model.Frontend)
		want uint32
	}{
		{"Cluster", func(_, _ *model.Frontend) {}, 0},
		{"Local", func(first, second *model.Frontend) { first.Local, second.Local = true, true }, 4},
		{"one of two is Local", func(_, second *model.Frontend) { second.Local = true }, 3},
		{"one Service has only terminating endpoints", func(first, second *model.Frontend) {
			first.Local, second.Local, second.Terminating = true, true, true
		}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := *m
			first, second := *m.Frontends[0], *m.Frontends[1]
			changed.Frontends = []*model.Frontend{&first, &second}
			test.edit(&first, &second)
			routes, _ := Decide(&changed, nodeWith(planned(&changed), planned(&changed)))
			for _, peer := range []string{"r1", "r2"} {
				if len(routes[peer]) != 1 || routes[peer][0].Weight != test.want {
					t.Errorf("routes to %s = %+v, want weight %d", peer, routes[peer], test.want)
				}
			}
		})
	}
}

// The VIP is announced only once all required operations are applied, and withdrawn before the first
// removal.
func TestAnnouncedOnlyWhenProgrammed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := base()
		if rapid.Bool().Draw(t, "local") {
			m.Frontends[0].Local = true
		}
		want := planned(m)
		ops := forwarding.Diff(forwarding.NewState(), want)
		done := rapid.IntRange(0, len(ops)).Draw(t, "done")
		state := forwarding.Apply(forwarding.NewState(), ops[:done])
		routes, _ := Decide(m, nodeWith(state, want))
		if announced := len(routes) > 0; announced != (done == len(ops)) {
			t.Fatalf("after %d of %d operations: announced = %t", done, len(ops), announced)
		}
	})
	m := base()
	programmed := planned(m)
	m.VIPs, m.Frontends = nil, nil
	if routes, decisions := Decide(m, nodeWith(programmed, planned(m))); len(routes) != 0 || len(decisions) != 0 {
		t.Errorf("routes of a removed VIP = %v", routes)
	}
}
