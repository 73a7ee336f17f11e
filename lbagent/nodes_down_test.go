// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/nodehealth"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
)

type fakeProber struct {
	verdict membership.Verdict
	known   []membership.Known
	want    probe.Want
}

func (j *fakeProber) SetTargets(want probe.Want)  { j.want = want }
func (j *fakeProber) Verdict() membership.Verdict { return j.verdict }
func (j *fakeProber) Known() []membership.Known   { return j.known }

func watchBy(prober nodehealth.Prober) *nodehealth.Tracker {
	return nodehealth.New(prober, func([][probe.KeySize]byte) error { return nil }, nodehealth.ReportAfter, logr.Discard())
}

// rowsOf returns each node's number of rows and of chains that contain it.
func rowsOf(s *forwarding.State) (rows, chains map[forwarding.NodeID]int) {
	rows, chains = map[forwarding.NodeID]int{}, map[forwarding.NodeID]int{}
	for _, table := range s.NodeTables {
		for _, row := range *table {
			rows[row.Primary]++
			for _, node := range row.Chain {
				if node != 0 {
					chains[node]++
				}
			}
		}
	}
	return rows, chains
}

// The rows of a failed node move to the other nodes immediately, no flow is looked up there, and its
// endpoints are used again after its recovery. Its packets are still accepted, and it is still probed.
func TestNodeDown(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 2, 2)
	l := newLoop(n, objects)
	j := &fakeProber{}
	l.nodeHealth = watchBy(j)
	mustPass(t, l, start)
	before, _ := rowsOf(n.state)
	if before[2] == 0 || len(j.want.Targets) != 1 || j.want.Self != 1 {
		t.Fatalf("rows = %v, probed = %+v", before, j.want)
	}
	j.verdict = membership.Verdict{Down: map[forwarding.NodeID]time.Time{2: start}}
	again := mustPass(t, l, start)
	rows, chains := rowsOf(n.state)
	if rows[2] != 0 || chains[2] != 0 || rows[1] != before[1]+before[2] {
		t.Errorf("rows = %v, chains = %v, want none of node 2", rows, chains)
	}
	if node, found := n.state.Nodes[2]; !found || !node.Down {
		t.Errorf("node 2 = %+v, want it down", node)
	}
	if len(n.targets) != 0 || len(j.want.Targets) != 1 {
		t.Errorf("hops to %v, probes to %v; want none and one", n.targets, j.want.Targets)
	}
	if !n.routes[vipOf(1)] {
		t.Error("the VIP is no longer announced although local pods serve it")
	}
	if len(n.observation.NodeHealth.Down) != 0 || again < nodehealth.ReportAfter || again > nodehealth.ReportAfter+nodehealth.ReportSpread {
		t.Errorf("reported immediately: %+v; next pass in %s", n.observation.NodeHealth, again)
	}
	mustPass(t, l, start.Add(again))
	if !slices.Equal(n.observation.NodeHealth.Down, []string{otherNode}) {
		t.Errorf("got %v", n.observation.NodeHealth.Down)
	}
	j.verdict = membership.Verdict{}
	mustPass(t, l, start.Add(again))
	if rows, _ := rowsOf(n.state); rows[2] == 0 || n.state.Nodes[2].Down || len(n.targets) != 1 {
		t.Errorf("after the recovery: rows %v, node %+v", rows, n.state.Nodes[2])
	}
	if len(n.observation.NodeHealth.Down) != 0 {
		t.Errorf("got %v", n.observation.NodeHealth.Down)
	}
}

// If all pods were on the failed node, clients are refused and the route is withdrawn.
func TestNodeDownWithAllPods(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 0, 2)
	l := newLoop(n, objects)
	j := &fakeProber{}
	l.nodeHealth = watchBy(j)
	mustPass(t, l, start)
	if !n.routes[vipOf(1)] {
		t.Fatal("not announced")
	}
	j.verdict = membership.Verdict{Down: map[forwarding.NodeID]time.Time{2: start}}
	mustPass(t, l, start)
	for key, frontend := range n.state.Frontends {
		if !frontend.Refuses || n.routes[key.VIP] {
			t.Errorf("%s: Refuses = %t, announced = %t", key, frontend.Refuses, n.routes[key.VIP])
		}
	}
}

// A node that is connected only to its routers serves only its local endpoints. It keeps all its routes
// with GRACEFUL_SHUTDOWN, and is not ready.
func TestMinority(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 2, 2)
	addService(objects, 2, false, 0, 2)
	addService(objects, 4, true, 2, 2)
	l := newLoop(n, objects)
	j := &fakeProber{}
	l.nodeHealth = watchBy(j)
	mustPass(t, l, start)
	leaving := func() (marked int) {
		for _, route := range n.want.Routes["router"] {
			if slices.Contains(route.Communities, 0xffff0000) {
				marked++
			}
		}
		return marked
	}
	if len(n.routes) != 3 || leaving() != 0 {
		t.Fatalf("announced = %v, %d with GRACEFUL_SHUTDOWN, want 3 and 0", n.routes, leaving())
	}
	j.verdict = membership.Verdict{Down: map[forwarding.NodeID]time.Time{2: start}, CutOff: true}
	again := mustPass(t, l, start)
	if n.observation.NodeHealth.CutOff {
		t.Error("reported immediately")
	}
	// Longer than any delay of routes, and of removals.
	mustPass(t, l, start.Add(max(again, time.Hour)))
	mustPass(t, l, start.Add(2*time.Hour))
	if rows, _ := rowsOf(n.state); rows[2] != 0 || rows[1] == 0 {
		t.Errorf("rows = %v, want the local endpoints", rows)
	}
	if len(n.routes) != 3 || leaving() != 3 {
		t.Errorf("announced = %v, %d with GRACEFUL_SHUTDOWN; want all three", n.routes, leaving())
	}
	for key, frontend := range n.state.Frontends {
		if frontend.Refuses != (key.VIP == vipOf(2)) {
			t.Errorf("%s: Refuses = %t", key, frontend.Refuses)
		}
	}
	if !n.observation.NodeHealth.CutOff {
		t.Errorf("got %+v", n.observation.NodeHealth)
	}
	j.verdict = membership.Verdict{}
	mustPass(t, l, start.Add(2*time.Hour))
	if len(n.routes) != 3 || leaving() != 0 || n.observation.NodeHealth.CutOff {
		t.Errorf("announced = %v, %d with GRACEFUL_SHUTDOWN, node health %+v", n.routes, leaving(), n.observation.NodeHealth)
	}
}

// While this node may be cut off, routes are depreferred and not withdrawn.
func TestCutOff(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 2, 2)
	l := newLoop(n, objects)
	j := &fakeProber{}
	l.nodeHealth = watchBy(j)
	mustPass(t, l, start)
	before := n.state.Clone()
	j.verdict = membership.Verdict{Held: map[forwarding.NodeID]time.Time{2: start}, CutOff: true}
	n.steps = nil
	mustPass(t, l, start.Add(nodehealth.ReportAfter+nodehealth.ReportSpread))
	if rows, _ := rowsOf(n.state); rows[2] == 0 || len(n.state.Nodes) != len(before.Nodes) || !n.routes[vipOf(1)] {
		t.Errorf("rows = %v, steps = %v", rows, n.steps)
	}
	if routes := n.want.Routes["router"]; len(routes) != 1 || !slices.Contains(routes[0].Communities, 0xffff0000) {
		t.Errorf("routes = %+v, want one with GRACEFUL_SHUTDOWN", routes)
	}
	if !slices.Equal(n.observation.NodeHealth.Held, []string{otherNode}) || !n.observation.NodeHealth.CutOff {
		t.Errorf("got %+v", n.observation.NodeHealth)
	}
}
