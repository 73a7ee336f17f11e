// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

var (
	vip4     = netip.MustParseAddr("203.0.113.1")
	vip6     = netip.MustParseAddr("2001:db8:1::1")
	node4    = netip.MustParseAddr("198.51.100.1")
	node6    = netip.MustParseAddr("2001:db8::1")
	endpoint = program.Endpoint{Address: netip.MustParseAddr("198.18.0.1"), Port: 8080}
	web      = model.ServiceName{Namespace: "default", Name: "web"}
	other    = model.ServiceName{Namespace: "default", Name: "other"}
	limits   = program.Limits{Frontends: 10, Tables: 10, EndpointSlots: 10, Endpoints: 10, VIPs: 10, SourceRanges: 10}
)

func labelled(value string) func(map[string]string) bool {
	return func(labels map[string]string) bool { return labels["tier"] == value }
}

// base is a model in which the VIP is announced to both peers: one Service
// under policy Cluster with an endpoint on this node and one elsewhere.
func base() *model.Model {
	return &model.Model{
		Self:  program.Self{ID: 1, IPv4: node4, IPv6: node6},
		Nodes: []model.Node{{ID: 1, IPv4: node4}, {ID: 2, IPv4: netip.MustParseAddr("198.51.100.2")}},
		VIPs: []model.VIP{{
			Address: vip4, Pool: "public",
			Services: []model.VIPService{{Name: web, Labels: map[string]string{"tier": "front"}}},
		}},
		Frontends: []model.Frontend{{
			Key:     program.FrontendKey{VIP: vip4, Port: 80, Protocol: program.ProtocolTCP},
			Service: web, PortName: "http",
			Weights: map[program.NodeID]uint32{1: 1, 2: 1}, Endpoints: []program.Endpoint{endpoint},
		}},
		Peers: []model.Peer{
			{Name: "r1", ASN: 64512, LocalASN: 64513, IPv4: true, IPv6: true},
			{Name: "r2", ASN: 64513, LocalASN: 64513, IPv4: true},
		},
		Advertisements: []model.Advertisement{{Name: "all"}},
	}
}

func planned(m *model.Model) *program.State {
	state, _ := plan.NewPlanner(program.NewState()).Plan(program.NewState(), m, limits)
	return state
}

// TestDecide changes the base in one way each. programmed is what the maps
// hold after the change of the model, unless the case changes it.
func TestDecide(t *testing.T) {
	both := []string{"r1", "r2"}
	key := base().Frontends[0].Key
	secondService := func(m *model.Model) {
		m.VIPs[0].Services = append(m.VIPs[0].Services, model.VIPService{Name: other, Labels: map[string]string{"tier": "back"}})
		m.Frontends = append(m.Frontends, model.Frontend{
			Key: program.FrontendKey{VIP: vip4, Port: 443, Protocol: program.ProtocolTCP}, Service: other,
			Weights: map[program.NodeID]uint32{},
		})
	}
	cases := []struct {
		name     string
		model    func(*model.Model)
		state    func(*program.State)
		detached bool
		reason   string
		peers    []string
	}{
		{name: "announced", peers: both},
		{name: "reserved", model: func(m *model.Model) { m.VIPs[0].Services, m.Frontends = nil, nil }, reason: ReasonNoService},
		{name: "no advertisement", model: func(m *model.Model) { m.Advertisements = nil }, reason: ReasonNotSelected},
		{name: "pool of the VIP", model: func(m *model.Model) { m.Advertisements[0].Pools = []string{"other", "public"} }, peers: both},
		{name: "another pool", model: func(m *model.Model) { m.Advertisements[0].Pools = []string{"other"} }, reason: ReasonNotSelected},
		{name: "labels match", model: func(m *model.Model) { m.Advertisements[0].Selects = labelled("front") }, peers: both},
		{name: "labels do not match", model: func(m *model.Model) { m.Advertisements[0].Selects = labelled("back") }, reason: ReasonNotSelected},
		{name: "labels of one of two Services match", model: func(m *model.Model) {
			secondService(m)
			m.Advertisements[0].Selects = labelled("back")
		}, peers: both},
		{name: "one peer", model: func(m *model.Model) { m.Advertisements[0].Peers = []string{"r2", "r9"} }, peers: []string{"r2"}},
		{name: "a peer of other nodes", model: func(m *model.Model) { m.Advertisements[0].Peers = []string{"r9"} }, reason: ReasonNoPeer},
		{name: "no peers", model: func(m *model.Model) { m.Peers = nil }, reason: ReasonNoPeer},
		{name: "peer without the family", model: func(m *model.Model) { m.Peers[0].IPv4 = false }, peers: []string{"r2"}},
		{name: "no frontend", model: func(m *model.Model) { m.Frontends = nil }, reason: ReasonNoFrontend},
		{name: "not attached", detached: true, reason: ReasonNotAttached},
		{name: "VIP not programmed", state: func(s *program.State) { delete(s.VIPs, vip4) }, reason: ReasonNotProgrammed},
		{name: "frontend not programmed", state: func(s *program.State) { delete(s.Frontends, key) }, reason: ReasonNotProgrammed},
		{name: "one of two frontends not programmed", model: secondService, state: func(s *program.State) {
			delete(s.Frontends, program.FrontendKey{VIP: vip4, Port: 443, Protocol: program.ProtocolTCP})
		}, reason: ReasonNotProgrammed},
		{name: "node table not programmed", state: func(s *program.State) {
			s.Frontends[key] = program.Frontend{ID: 1, Endpoints: 1}
		}, reason: ReasonNotProgrammed},
		{name: "endpoint table not programmed", state: func(s *program.State) {
			s.Frontends[key] = program.Frontend{ID: 1, Table: 1}
		}, reason: ReasonNotProgrammed},
		{name: "programmed with the other policy", state: func(s *program.State) {
			s.Frontends[key] = program.Frontend{ID: 1, Local: true, Table: 1, Endpoints: 1}
		}, reason: ReasonNotProgrammed},
		{name: "restricted", model: func(m *model.Model) {
			m.Frontends[0].Restricted, m.Frontends[0].Sources = true, []netip.Prefix{netip.MustParsePrefix("198.51.0.0/16")}
		}, peers: both},
		{name: "source ranges not programmed", model: func(m *model.Model) {
			m.Frontends[0].Restricted, m.Frontends[0].Sources = true, []netip.Prefix{netip.MustParsePrefix("198.51.0.0/16")}
		}, state: func(s *program.State) {
			f := s.Frontends[key]
			f.Ranges = 0
			s.Frontends[key] = f
		}, reason: ReasonNotProgrammed},
		{name: "shut until there is room for the source ranges", model: func(m *model.Model) {
			m.Frontends[0].Restricted, m.Frontends[0].Sources = true, []netip.Prefix{netip.MustParsePrefix("198.51.0.0/16")}
		}, state: func(s *program.State) {
			f := s.Frontends[key]
			f.Ranges = program.Nobody
			s.Frontends[key] = f
		}, reason: ReasonNotProgrammed},
		{name: "admits nobody", model: func(m *model.Model) { m.Frontends[0].Restricted = true }, peers: both},
		{name: "Cluster, endpoints elsewhere only", model: func(m *model.Model) {
			m.Frontends[0].Weights, m.Frontends[0].Endpoints = map[program.NodeID]uint32{2: 1}, nil
		}, peers: both},
		{name: "Cluster, terminating endpoints only", model: func(m *model.Model) { m.Frontends[0].Terminating = true }, peers: both},
		{name: "Cluster, no endpoints", model: func(m *model.Model) {
			m.Frontends[0].Weights, m.Frontends[0].Endpoints = nil, nil
		}, reason: ReasonNoEndpoints},
		{name: "Local, ready here", model: func(m *model.Model) { m.Frontends[0].Local = true }, peers: both},
		{name: "Local, endpoints elsewhere only", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Endpoints, m.Frontends[0].Weights = true, nil, map[program.NodeID]uint32{2: 1}
		}, reason: ReasonNoLocalEndpoint},
		{name: "Local, terminating here", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Terminating = true, true
		}, reason: ReasonNoLocalEndpoint},
		{name: "Local, no endpoints", model: func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Endpoints, m.Frontends[0].Weights = true, nil, nil
		}, reason: ReasonNoEndpoints},
		{name: "one of two Services has endpoints", model: secondService, peers: both},
		{name: "two Local Services, one ready here", model: func(m *model.Model) {
			secondService(m)
			for i := range m.Frontends {
				m.Frontends[i].Local, m.Frontends[i].Shared = true, true
			}
			m.Frontends[1].Weights = map[program.NodeID]uint32{2: 1}
		}, peers: both},
		{name: "two Local Services, the other's table not programmed", model: func(m *model.Model) {
			secondService(m)
			for i := range m.Frontends {
				m.Frontends[i].Local, m.Frontends[i].Shared = true, true
			}
			m.Frontends[1].Weights = map[program.NodeID]uint32{2: 1}
		}, state: func(s *program.State) {
			second := program.FrontendKey{VIP: vip4, Port: 443, Protocol: program.ProtocolTCP}
			s.Frontends[second] = program.Frontend{ID: s.Frontends[second].ID, Local: true}
		}, reason: ReasonNotProgrammed},
		{name: "two Local Services, none here", model: func(m *model.Model) {
			secondService(m)
			for i := range m.Frontends {
				m.Frontends[i].Local, m.Frontends[i].Shared, m.Frontends[i].Endpoints = true, true, nil
				m.Frontends[i].Weights = map[program.NodeID]uint32{2: 1}
			}
		}, reason: ReasonNoLocalEndpoint},
		{name: "Cluster, unready endpoint that lives", model: func(m *model.Model) {
			m.Frontends[0].Weights, m.Frontends[0].Endpoints, m.Frontends[0].Living = nil, nil, true
		}, reason: ReasonNoEndpoints},
		{name: "no next hop", model: func(m *model.Model) { m.Self.IPv4 = netip.Addr{} }, reason: ReasonNoNextHop},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := base()
			if c.model != nil {
				c.model(m)
			}
			slices.SortFunc(m.Frontends, func(a, b model.Frontend) int { return a.Key.Compare(b.Key) })
			state := planned(m)
			if c.state != nil {
				c.state(state)
			}
			routes, decisions := Decide(m, state, !c.detached)
			if len(decisions) != 1 || decisions[0].VIP != vip4 {
				t.Fatalf("decisions %+v, want one, of %s", decisions, vip4)
			}
			decision := decisions[0]
			if decision.Reason != c.reason || !slices.Equal(decision.Peers, c.peers) {
				t.Errorf("decision %+v, want the reason %q and the peers %v", decision, c.reason, c.peers)
			}
			if (decision.Message == "") != (c.reason == "") {
				t.Errorf("message %q beside the reason %q", decision.Message, decision.Reason)
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
	six := m.Frontends[0]
	six.Key.VIP = vip6
	m.Frontends = append(m.Frontends, six)
	m.Advertisements = []model.Advertisement{
		{Name: "a", Peers: []string{"r2"}, Communities: []uint32{1}, LocalPreference: &high},
		{Name: "b", LargeCommunities: [][3]uint32{{1, 2, 3}}, LocalPreference: &low},
	}
	routes, decisions := Decide(m, planned(m), true)
	want := Routes{
		// Outside our autonomous system a local preference means nothing.
		"r1": {
			{Prefix: netip.PrefixFrom(vip4, 32), NextHop: node4, LargeCommunities: [][3]uint32{{1, 2, 3}}},
			{Prefix: netip.PrefixFrom(vip6, 128), NextHop: node6, LargeCommunities: [][3]uint32{{1, 2, 3}}},
		},
		// The first advertisement by name decides; r2 is for IPv4 alone.
		"r2": {{Prefix: netip.PrefixFrom(vip4, 32), NextHop: node4, Communities: []uint32{1}, LocalPreference: &high}},
	}
	if !reflect.DeepEqual(routes, want) {
		t.Errorf("routes %+v, want %+v", routes, want)
	}
	wanted := []Decision{{VIP: vip4, Peers: []string{"r1", "r2"}}, {VIP: vip6, Peers: []string{"r1"}}}
	if !reflect.DeepEqual(decisions, wanted) {
		t.Errorf("decisions %+v, want %+v", decisions, wanted)
	}
}

// TestAnnouncedOnlyWhenProgrammed applies the operations one by one: the VIP
// is announced only once the last of what it needs is in the maps, and a VIP
// that is to go is not announced before the first removal.
func TestAnnouncedOnlyWhenProgrammed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := base()
		if rapid.Bool().Draw(t, "local") {
			m.Frontends[0].Local = true
		}
		want := planned(m)
		ops := program.Diff(program.NewState(), want)
		done := rapid.IntRange(0, len(ops)).Draw(t, "done")
		state := program.Apply(program.NewState(), ops[:done])
		routes, _ := Decide(m, state, true)
		if announced := len(routes) > 0; announced != (done == len(ops)) {
			t.Fatalf("after %d of %d operations announced is %t", done, len(ops), announced)
		}
	})
	m := base()
	programmed := planned(m)
	m.VIPs, m.Frontends = nil, nil
	if routes, decisions := Decide(m, programmed, true); len(routes) != 0 || len(decisions) != 0 {
		t.Errorf("a VIP that is to go has the routes %v", routes)
	}
}
