// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
)

// judge is a prober with a verdict that the test gives.
type judge struct {
	verdict membership.Verdict
	want    probe.Want
}

func (j *judge) Want(want probe.Want)        { j.want = want }
func (j *judge) Verdict() membership.Verdict { return j.verdict }
func (j *judge) Known() []membership.Known   { return nil }

func watchBy(prober Prober) *Watch {
	return New(prober, func([][probe.KeySize]byte) error { return nil }, ReportAfter, logr.Discard())
}

// The data plane is told without a pass, of a return as of a loss.
func TestNodeDownIsMarked(t *testing.T) {
	j := &judge{verdict: membership.Verdict{Down: map[forwarding.NodeID]time.Time{2: time.Now()}}}
	w := watchBy(j)
	mark := func() (marked map[forwarding.NodeID]bool) {
		w.Mark(func(down map[forwarding.NodeID]bool) error {
			marked = down
			return nil
		})
		return marked
	}
	if got := mark(); !maps.Equal(got, map[forwarding.NodeID]bool{2: true}) {
		t.Errorf("marked are %v, want node 2", got)
	}
	j.verdict = membership.Verdict{}
	if got := mark(); len(got) != 0 {
		t.Errorf("marked are %v after its return", got)
	}
}

// Nodes are asked for their agents where VIPs are answered for on links. There a node whose agent hangs is
// no candidate, and goes on forwarding.
func TestAgentHangs(t *testing.T) {
	j := &judge{verdict: membership.Verdict{
		Held: map[forwarding.NodeID]time.Time{3: {}}, Alone: map[forwarding.NodeID]bool{2: true},
	}}
	w := watchBy(j)
	objects := w.See(&model.Snapshot{})
	if want := map[forwarding.NodeID]bool{2: true, 3: true}; !maps.Equal(w.Silent(), want) || len(objects.Down) > 0 {
		t.Errorf("silent are %v, down are %v; want %v and none", w.Silent(), objects.Down, want)
	}
	for _, l2 := range [][]model.Advertisement{nil, {{Name: "lan", L2: true}}} {
		if err := w.Want(&model.Model{L2: l2}, forwarding.TunnelKeys{}); err != nil {
			t.Fatal(err)
		}
		if asks := j.want.Agents; asks != (len(l2) > 0) {
			t.Errorf("with advertisements %v nodes are asked for their agents: %v", l2, asks)
		}
	}
}

// The targets are those of the model that is wanted last, though most models share their nodes.
func TestWantFollowsNodes(t *testing.T) {
	address := netip.MustParseAddr
	j := &judge{}
	w := watchBy(j)
	self := forwarding.Self{ID: 1, IPv4: address("203.0.113.1")}
	nodes := []model.Node{
		{Name: "a", ID: 1, Node: forwarding.Node{IPv4: self.IPv4}},
		{Name: "b", ID: 2, Node: forwarding.Node{IPv4: address("203.0.113.2")}},
	}
	more := append(slices.Clone(nodes), model.Node{Name: "c", ID: 3, Node: forwarding.Node{IPv4: address("203.0.113.3")}})
	for i, step := range []struct {
		self    forwarding.Self
		nodes   []model.Node
		targets []forwarding.NodeID
	}{
		{self, nodes, []forwarding.NodeID{2}},
		{self, nodes, []forwarding.NodeID{2}},
		{self, more, []forwarding.NodeID{2, 3}},
		{forwarding.Self{ID: 2, IPv4: address("203.0.113.2")}, more, []forwarding.NodeID{1, 3}},
		{forwarding.Self{}, more, nil},
		{self, nil, nil},
	} {
		if err := w.Want(&model.Model{Self: step.self, Nodes: step.nodes}, forwarding.TunnelKeys{}); err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(j.want.Targets)); !slices.Equal(got, step.targets) {
			t.Errorf("step %d: nodes %v are asked, want %v", i, got, step.targets)
		}
		for _, id := range step.targets {
			if source := j.want.Targets[id].Source; source != step.self.IPv4 {
				t.Errorf("step %d: node %d is asked from %s, want %s", i, id, source, step.self.IPv4)
			}
		}
	}
}

// A node that is cut off reports it before the others report that this node is down.
func TestCutOffIsReported(t *testing.T) {
	lost := time.Unix(1e9, 0)
	since := map[forwarding.NodeID]time.Time{2: lost, 3: lost}
	for name, test := range map[string]struct {
		verdict membership.Verdict
		want    time.Duration
		cutOff  bool
	}{
		"held":      {membership.Verdict{Held: since, CutOff: true}, ReportAfter / 6, true},
		"down":      {membership.Verdict{Down: since, CutOff: true}, ReportAfter / 6, true},
		"two nodes": {membership.Verdict{Held: since}, ReportAfter, false},
		"lossy":     {membership.Verdict{Down: since, Lossy: lost}, ReportAfter, false},
	} {
		w := watchBy(&judge{verdict: test.verdict})
		w.See(&model.Snapshot{})
		if told, again := w.Observe(0, lost); told.CutOff || told.Lossy || again != test.want {
			t.Errorf("%s: at once %+v is reported, again after %s; want %s", name, told, again, test.want)
		}
		if told, _ := w.Observe(0, lost.Add(test.want)); told.CutOff != test.cutOff || told.Lossy == test.verdict.Lossy.IsZero() || len(told.Held)+len(told.Down) != 2 {
			t.Errorf("%s: reported is %+v", name, told)
		}
	}
}
