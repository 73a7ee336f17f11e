// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
)

type fakeProber struct {
	verdict membership.Verdict
	want    probe.Want
}

func (j *fakeProber) SetTargets(want probe.Want)  { j.want = want }
func (j *fakeProber) Verdict() membership.Verdict { return j.verdict }
func (j *fakeProber) Known() []membership.Known   { return nil }

func watchBy(prober Prober) *Tracker {
	return New(prober, func([][probe.KeySize]byte) error { return nil }, ReportAfter, logr.Discard())
}

// The data plane is updated without a pass after losses and returns.
func TestNodeDownIsMarked(t *testing.T) {
	j := &fakeProber{verdict: membership.Verdict{Down: map[forwarding.NodeID]time.Time{2: time.Now()}}}
	w := watchBy(j)
	mark := func() (marked map[forwarding.NodeID]bool) {
		w.MarkDown(func(down map[forwarding.NodeID]bool) error {
			marked = down
			return nil
		})
		return marked
	}
	if got := mark(); !maps.Equal(got, map[forwarding.NodeID]bool{2: true}) {
		t.Errorf("marked nodes = %v, want node 2", got)
	}
	j.verdict = membership.Verdict{}
	if got := mark(); len(got) != 0 {
		t.Errorf("marked nodes = %v after recovery, want none", got)
	}
}

// A node with a silent agent answers for no VIP on links and still forwards.
func TestAgentHangs(t *testing.T) {
	j := &fakeProber{verdict: membership.Verdict{
		Held: map[forwarding.NodeID]time.Time{3: {}}, AgentSilent: map[forwarding.NodeID]time.Time{2: time.Now()},
	}}
	w := watchBy(j)
	objects := w.Annotate(&model.Snapshot{}, time.Now())
	if want := map[forwarding.NodeID]bool{2: true, 3: true}; !maps.Equal(w.Silent(), want) || len(objects.Down) > 0 {
		t.Errorf("Silent = %v, Down = %v; want %v and none", w.Silent(), objects.Down, want)
	}
}

// New endpoints on nodes with silent agents receive no new flows while others exist.
func TestSilentAgentGetsNoNewEndpoints(t *testing.T) {
	pods := func(on ...string) []*discoveryv1.EndpointSlice {
		slice := &discoveryv1.EndpointSlice{}
		for i, node := range on {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{string(rune('a' + i))}, NodeName: &node})
		}
		return []*discoveryv1.EndpointSlice{slice}
	}
	lbNode := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: millracev1beta1.LBNodeSpec{ID: 2}}
	start := time.Now()
	j := &fakeProber{verdict: membership.Verdict{AgentSilent: map[forwarding.NodeID]time.Time{2: start}}}
	w := watchBy(j)
	w.Resume(&model.Snapshot{EndpointSlices: pods("one", "two")})
	seen := w.Annotate(&model.Snapshot{LBNodes: []*millracev1beta1.LBNode{lbNode}, EndpointSlices: pods("one", "two", "two", "one")}, start)
	for i, want := range []bool{true, true, false, true} {
		if ready := seen.EndpointSlices[0].Endpoints[i].Conditions.Ready; (ready == nil) != want {
			t.Errorf("endpoint %d unchanged: %v, want %v", i, ready == nil, want)
		}
	}
	if told, again := w.Observe(0, start); told.Silent != nil || again != ReportAfter {
		t.Errorf("immediately reported: %v, next report after %s", told.Silent, again)
	}
	want := []string{"two since " + start.UTC().Format(time.RFC3339)}
	if told, _ := w.Observe(0, start.Add(ReportAfter)); !slices.Equal(told.Silent, want) {
		t.Errorf("reported: %v, want %v", told.Silent, want)
	}
	j.verdict.Down = j.verdict.AgentSilent
	w.Annotate(&model.Snapshot{LBNodes: []*millracev1beta1.LBNode{lbNode}}, start)
	if told, _ := w.Observe(0, start.Add(ReportAfter)); told.Silent != nil || !slices.Equal(told.Down, []string{"two"}) {
		t.Errorf("node 2 is down: reported %+v", told)
	}
}

// Targets follow the last model, although most models share their nodes.
func TestTargetsFollowNodes(t *testing.T) {
	address := netip.MustParseAddr
	j := &fakeProber{}
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
		if err := w.SetTargets(&model.Model{Self: step.self, Nodes: step.nodes}, forwarding.TunnelKeys{}); err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(j.want.Targets)); !slices.Equal(got, step.targets) {
			t.Errorf("step %d: probed nodes = %v, want %v", i, got, step.targets)
		}
		for _, id := range step.targets {
			if source := j.want.Targets[id].Source; source != step.self.IPv4 {
				t.Errorf("step %d: node %d is probed from %s, want %s", i, id, source, step.self.IPv4)
			}
		}
	}
}

// A cut-off node reports itself before others report it as down.
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
		w := watchBy(&fakeProber{verdict: test.verdict})
		w.Annotate(&model.Snapshot{}, time.Now())
		if told, again := w.Observe(0, lost); told.CutOff || told.Lossy || again != test.want {
			t.Errorf("%s: immediately reported: %+v, next report after %s; want %s", name, told, again, test.want)
		}
		if told, _ := w.Observe(0, lost.Add(test.want)); told.CutOff != test.cutOff || told.Lossy == test.verdict.Lossy.IsZero() || len(told.Held)+len(told.Down) != 2 {
			t.Errorf("%s: reported: %+v", name, told)
		}
	}
}
