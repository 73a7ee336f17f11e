// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func TestDrainAdvances(t *testing.T) {
	const delay = 5 * time.Second
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type step struct {
		at        time.Duration
		departing bool
		phase     Phase
		wait      time.Duration
	}
	for name, steps := range map[string][]step{
		"stays":    {{0, false, Active, 0}, {time.Hour, false, Active, 0}},
		"departs":  {{0, false, Active, 0}, {time.Second, true, Draining, delay}, {5 * time.Second, true, Draining, time.Second}, {6 * time.Second, true, Drained, 0}, {time.Hour, true, Drained, 0}},
		"returns":  {{0, false, Active, 0}, {0, true, Draining, delay}, {time.Second, false, Active, 0}, {2 * time.Second, true, Draining, delay}, {time.Hour, true, Drained, 0}, {time.Hour, false, Active, 0}},
		"restarts": {{0, true, Drained, 0}, {time.Second, true, Drained, 0}, {2 * time.Second, false, Active, 0}, {3 * time.Second, true, Draining, delay}},
	} {
		var d Drain
		for i, s := range steps {
			if phase, wait := d.Advance(s.departing, delay, start.Add(s.at)); phase != s.phase || wait != s.wait {
				t.Errorf("%s, step %d: phase %d, next check in %s; want %d, %s", name, i, phase, wait, s.phase, s.wait)
			}
		}
	}
	var d Drain
	d.Advance(false, 0, start)
	if phase, _ := d.Advance(true, 0, start); phase != Drained {
		t.Errorf("without a delay: phase %d", phase)
	}
}

// A departing node's routes carry GRACEFUL_SHUTDOWN and are then withdrawn, unless no other node can serve.
func TestDecideDeparture(t *testing.T) {
	for name, test := range map[string]struct {
		phase  Phase
		change func(*model.Model)
		// leaving is true for routes with GRACEFUL_SHUTDOWN.
		announced, leaving bool
	}{
		"present": {Active, func(*model.Model) {}, true, false},
		"leaving": {Draining, func(*model.Model) {}, true, true},
		"left":    {Drained, func(*model.Model) {}, false, false},
		"only node": {Drained, func(m *model.Model) {
			m.Nodes = m.Nodes[:1]
			m.Frontends[0].Weights = map[forwarding.NodeID]uint32{1: 1}
		}, true, false},
		"other node drains, too":        {Drained, func(m *model.Model) { m.Nodes[1].Draining = millracev1beta1.DrainReasonCordoned }, true, false},
		"other node is booting":         {Draining, func(m *model.Model) { m.Nodes[1].Booting = true }, true, false},
		"local endpoints only, Cluster": {Drained, func(m *model.Model) { m.Frontends[0].Weights = map[forwarding.NodeID]uint32{1: 1} }, false, false},
		"remote endpoints, too, Local":  {Drained, func(m *model.Model) { m.Frontends[0].Local = true }, false, false},
		"local endpoints only, Local": {Drained, func(m *model.Model) {
			m.Frontends[0].Local, m.Frontends[0].Weights = true, map[forwarding.NodeID]uint32{1: 1}
		}, true, false},
	} {
		m := base()
		m.Draining = millracev1beta1.DrainReasonDrained
		test.change(m)
		state := planned(m)
		node := nodeWith(state, state)
		node.Phase = test.phase
		routes, decisions := Decide(m, node)
		if got := decisions[0].Reason == "" && len(routes["r1"]) == 1; got != test.announced {
			t.Errorf("%s: announced = %t: %+v", name, got, decisions[0])
			continue
		}
		if !test.announced {
			if decisions[0].Reason != ReasonNodeDraining || len(routes) != 0 {
				t.Errorf("%s: %+v, routes %v", name, decisions[0], routes)
			}
			continue
		}
		external, internal := routes["r1"][0], routes["r2"][0]
		if got := slices.Contains(external.Communities, 0xffff0000); got != test.leaving || external.LocalPreference != nil {
			t.Errorf("%s: route to the external peer = %+v", name, external)
		}
		lowest := internal.LocalPreference != nil && *internal.LocalPreference == 0
		if got := slices.Contains(internal.Communities, 0xffff0000); got != test.leaving || lowest != test.leaving {
			t.Errorf("%s: route to the internal peer = %+v", name, internal)
		}
	}
}

// All nodes release a VIP, including those that do not depart.
func TestDecideRelease(t *testing.T) {
	for _, test := range []struct {
		release            millracev1beta1.ReleasePhase
		phase              Phase
		announced, leaving bool
		reason             string
	}{
		{"", Active, true, false, ""},
		{millracev1beta1.ReleaseDraining, Active, true, true, ""},
		{millracev1beta1.ReleaseDraining, Drained, false, false, ReasonNodeDraining},
		{millracev1beta1.ReleaseWithdrawn, Active, false, false, ReasonReleasing},
		{"Later", Active, true, true, ""},
	} {
		m := base()
		m.VIPs[0].Release = test.release
		state := planned(m)
		node := nodeWith(state, state)
		node.Phase = test.phase
		routes, decisions := Decide(m, node)
		if len(routes["r1"]) == 1 != test.announced || decisions[0].Reason != test.reason {
			t.Errorf("%q: routes %v, %+v", test.release, routes, decisions[0])
			continue
		}
		if test.announced && slices.Contains(routes["r1"][0].Communities, gracefulShutdown) != test.leaving {
			t.Errorf("%q: route = %+v", test.release, routes["r1"][0])
		}
	}
}

// A VIP that a node would announce without departures is announced by at least one node with them.
func TestDrainKeepsLastPath(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		m := base()
		m.Nodes, m.Frontends[0].Weights = nil, map[forwarding.NodeID]uint32{}
		m.Frontends[0].Local = rapid.Bool().Draw(t, "Local")
		for id := forwarding.NodeID(1); int(id) <= nodes; id++ {
			node := model.Node{ID: id, Node: forwarding.Node{IPv4: node4}, Booting: rapid.Bool().Draw(t, "booting")}
			if rapid.Bool().Draw(t, "departing") {
				node.Draining = millracev1beta1.DrainReasonCordoned
			}
			m.Nodes = append(m.Nodes, node)
			if rapid.Bool().Draw(t, "endpoint") {
				m.Frontends[0].Weights[id] = 1
			}
		}
		would, does := false, false
		for _, self := range m.Nodes {
			own := *m
			own.Self.ID, own.Draining = self.ID, self.Draining
			frontend := *m.Frontends[0]
			frontend.Endpoints = nil
			own.Frontends = []*model.Frontend{&frontend}
			if m.Frontends[0].Weights[self.ID] > 0 {
				own.Frontends[0].Endpoints = []forwarding.Endpoint{endpoint}
			}
			state := planned(&own)
			node := nodeWith(state, state)
			_, decisions := Decide(&own, node)
			// A booting node's agent is not running.
			would = would || decisions[0].Reason == "" && !self.Booting
			if self.Draining != "" {
				node.Phase = Drained
			}
			_, decisions = Decide(&own, node)
			does = does || decisions[0].Reason == "" && !self.Booting
		}
		if would && !does {
			t.Fatalf("no node announces the VIP: %+v", m.Nodes)
		}
	})
}

// A cut-off node announces VIPs with GRACEFUL_SHUTDOWN even without local endpoints.
func TestDecideCutOff(t *testing.T) {
	for name, test := range map[string]struct {
		local, own, unreached, before bool
		want                          string
	}{
		"local endpoint":                         {own: true, unreached: true, before: true},
		"only local endpoints":                   {own: true, before: true},
		"local endpoint, not announced before":   {own: true, unreached: true},
		"remote endpoints":                       {unreached: true, before: true},
		"remote endpoints, not announced before": {unreached: true, want: ReasonNoEndpoints},
		"no endpoints, announced before":         {before: true, want: ReasonNoEndpoints},
		"Local, local endpoint":                  {local: true, own: true, unreached: true, before: true},
		"Local, remote endpoints":                {local: true, unreached: true, before: true, want: ReasonNoEndpoints},
	} {
		m := base()
		m.CutOff = true
		frontend := m.Frontends[0]
		frontend.Local, frontend.Unreached = test.local, test.unreached
		frontend.Weights, frontend.Endpoints = map[forwarding.NodeID]uint32{}, nil
		if test.own {
			frontend.Weights, frontend.Endpoints = map[forwarding.NodeID]uint32{1: 1}, []forwarding.Endpoint{endpoint}
		}
		state := planned(m)
		node := nodeWith(state, state)
		node.Announced = map[netip.Addr]bool{vip4: test.before}
		routes, decisions := Decide(m, node)
		if decisions[0].Reason != test.want {
			t.Errorf("%s: %+v, want reason %q", name, decisions[0], test.want)
			continue
		}
		for _, peer := range []string{"r1", "r2"} {
			if test.want == "" && !slices.Contains(routes[peer][0].Communities, gracefulShutdown) {
				t.Errorf("%s: route to %s = %+v, want GRACEFUL_SHUTDOWN", name, peer, routes[peer][0])
			}
		}
	}
}
