// SPDX-License-Identifier: Apache-2.0

package canary

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

type simulated struct {
	nodes       int
	paths       []int
	lost, short map[int]bool
	pick        func(node, port int) int
}

func (s *simulated) reports() ([]millracev1beta1.LBNodeReport, map[string]int32) {
	reports, ids := []millracev1beta1.LBNodeReport{}, map[string]int32{}
	for node := 1; node <= s.nodes; node++ {
		name := fmt.Sprintf("node%d", node)
		ids[name] = int32(node)
		reached, short, unanswered := map[int32]bool{}, map[int32]bool{}, int32(0)
		for port := range Ports {
			if len(s.paths) == 0 {
				unanswered++
				continue
			}
			to := s.paths[s.pick(node, port)%len(s.paths)]
			if s.lost[to] {
				unanswered++
				continue
			}
			reached[int32(to)] = true
			if s.short[to] && port%4 == 0 {
				short[int32(to)] = true
			}
		}
		reports = append(reports, millracev1beta1.LBNodeReport{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: millracev1beta1.LBNodeReportStatus{Sessions: []millracev1beta1.SessionStatus{{
				Peer: "tor", Address: "198.51.100.1", State: millracev1beta1.SessionEstablished,
				Canaries: []millracev1beta1.CanaryStatus{{
					Address: "203.0.113.250", Announced: true, Reached: FormatIDs(reached), Unanswered: &unanswered, ReachedBySmallProbes: FormatIDs(short),
				}},
			}}},
		})
	}
	return reports, ids
}

func all(nodes int) (ids []int) {
	for id := 1; id <= nodes; id++ {
		ids = append(ids, id)
	}
	return ids
}

// drawRouter draws a router without a fault, with up to 256 nodes and a random hash.
func drawRouter(t *rapid.T) *simulated {
	nodes := rapid.IntRange(2, 256).Draw(t, "nodes")
	seed := rapid.Uint64().Draw(t, "seed")
	return &simulated{nodes: nodes, paths: all(nodes), pick: func(node, port int) int {
		x := seed ^ uint64(node)<<32 ^ uint64(port)
		for range 3 {
			x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
			x = (x ^ x>>27) * 0x94d049bb133111eb
			x ^= x >> 31
		}
		return int(x >> 33)
	}}
}

func (s *simulated) judge(t *rapid.T) Verdict {
	reports, ids := s.reports()
	verdicts := Judge(reports, ids)
	if len(verdicts) != 1 {
		t.Fatalf("%d verdicts, want 1: %+v", len(verdicts), verdicts)
	}
	return verdicts[0]
}

func TestNoFalseAlarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawRouter(t)
		if verdict := s.judge(t); !verdict.OK() {
			t.Fatalf("%d nodes: %s: %s", s.nodes, verdict.Reason, verdict.Message)
		}
	})
}

// TestNoFalseAlarmWhileAgentsStart checks that no fault is reported while some agents start: the router keeps
// the routes of their nodes, and these do not probe.
func TestNoFalseAlarmWhileAgentsStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawRouter(t)
		reports, ids := s.reports()
		probing := rapid.IntRange(1, s.nodes).Draw(t, "probing")
		if rapid.Bool().Draw(t, "few") {
			probing = min(probing, 1+probing%8)
		}
		for i := range reports[probing:] {
			if session := &reports[probing+i].Status.Sessions[0]; rapid.Bool().Draw(t, "has a session") {
				session.Canaries = []millracev1beta1.CanaryStatus{{Address: "203.0.113.250"}}
			} else {
				session.State = millracev1beta1.SessionIdle
			}
		}
		for _, verdict := range Judge(reports, ids) {
			if verdict.Known() && !verdict.OK() {
				t.Fatalf("%d nodes: %s: %s", s.nodes, verdict.Reason, verdict.Message)
			}
		}
	})
}

func TestFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawRouter(t)
		victim := rapid.IntRange(1, s.nodes).Draw(t, "victim")
		want := rapid.SampledFrom([]string{
			millracev1beta1.ReasonRouteMissing, millracev1beta1.ReasonPacketsLost, millracev1beta1.ReasonLargePacketsLost,
			millracev1beta1.ReasonNoProbeReplies,
		}).Draw(t, "fault")
		switch want {
		case millracev1beta1.ReasonRouteMissing:
			s.paths = slices.DeleteFunc(s.paths, func(id int) bool { return id == victim })
		case millracev1beta1.ReasonPacketsLost:
			s.lost = map[int]bool{victim: true}
		case millracev1beta1.ReasonLargePacketsLost:
			s.short = map[int]bool{victim: true}
		case millracev1beta1.ReasonNoProbeReplies:
			s.paths = nil
		}
		verdict := s.judge(t)
		if verdict.Reason != want {
			t.Fatalf("%d nodes: %s: %s; want %s", s.nodes, verdict.Reason, verdict.Message, want)
		}
		node := verdict.Nodes[slices.IndexFunc(verdict.Nodes, func(n Node) bool { return n.ID == int32(victim) })]
		if want != millracev1beta1.ReasonLargePacketsLost && node.ReachedBy > 0 || want == millracev1beta1.ReasonLargePacketsLost && !node.Short {
			t.Fatalf("the node with the fault is %+v", node)
		}
	})
}

// TestLossyBound checks that a node is reported if an eighth of its probes is unanswered, and not with one
// answer more.
func TestLossyBound(t *testing.T) {
	for unanswered, want := range map[int32]string{
		Ports/8 - 1: millracev1beta1.ReasonPathsVerified,
		Ports / 8:   millracev1beta1.ReasonPacketsLost,
	} {
		s := &simulated{nodes: 3, paths: all(3), pick: func(node, port int) int { return node + port }}
		reports, ids := s.reports()
		reports[0].Status.Sessions[0].Canaries[0].Unanswered = &unanswered
		if verdicts := Judge(reports, ids); len(verdicts) != 1 || verdicts[0].Reason != want {
			t.Errorf("%d of %d answers are missing: %+v; want %s", unanswered, Ports, verdicts, want)
		}
	}
}

func TestFewerPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawRouter(t)
		s.paths = s.paths[:rapid.IntRange(1, s.nodes-1).Draw(t, "paths")]
		if verdict := s.judge(t); verdict.Reason != millracev1beta1.ReasonRouteMissing {
			t.Fatalf("%d of %d paths: %s: %s", len(s.paths), s.nodes, verdict.Reason, verdict.Message)
		} else if first := "it has only one path"; strings.Contains(verdict.Message, first) != (len(s.paths) == 1 && s.nodes > 2) {
			t.Fatalf("%d of %d paths: %s", len(s.paths), s.nodes, verdict.Message)
		}
	})
}

// TestHashIgnoresPorts checks that a router that hashes addresses only is not reported for nodes without
// probes, unless all probes reached the same node. Nodes with lost probes are reported.
func TestHashIgnoresPorts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawRouter(t)
		ports := s.pick
		s.pick = func(node, _ int) int { return ports(node, 0) }
		took := map[int]bool{}
		for node := 1; node <= s.nodes; node++ {
			took[s.paths[s.pick(node, 0)%len(s.paths)]] = true
		}
		verdict := s.judge(t)
		alone := slices.ContainsFunc(verdict.Nodes, func(n Node) bool { return n.ReachedBy == 0 })
		switch want := millracev1beta1.ReasonHashIgnoresPorts; {
		case !alone:
			if !verdict.OK() {
				t.Fatalf("all %d nodes are reached, and the verdict is %s: %s", s.nodes, verdict.Reason, verdict.Message)
			}
		case len(took) > 1 && (verdict.Reason != want || verdict.Known() || verdict.OK()):
			t.Fatalf("%d of %d nodes: %s: %s; want %s", len(took), s.nodes, verdict.Reason, verdict.Message, want)
		}
		if len(took) > 2 {
			victim := s.paths[s.pick(1, 0)%len(s.paths)]
			s.lost = map[int]bool{victim: true}
			if verdict := s.judge(t); verdict.Reason != millracev1beta1.ReasonPacketsLost {
				t.Fatalf("%d nodes, one of which is lost: %s: %s", s.nodes, verdict.Reason, verdict.Message)
			}
		}
	})
}

// TestPending checks that reports of nodes that are not ready, or have not probed yet, lead to no verdict.
func TestPending(t *testing.T) {
	s := &simulated{nodes: 2, paths: all(2), pick: func(_, port int) int { return port }}
	reports, ids := s.reports()
	for i := range reports {
		reports[i].Status.Sessions[0].Canaries[0].Announced = false
	}
	if verdicts := Judge(reports, ids); len(verdicts) != 1 || verdicts[0].Known() {
		t.Errorf("verdicts %+v without an announcing node; want no result", verdicts)
	}
	for i := range reports {
		reports[i].Status.Conditions = []metav1.Condition{{Type: millracev1beta1.ConditionNodeReady, Status: metav1.ConditionFalse}}
	}
	if verdicts := Judge(reports, ids); len(verdicts) != 0 {
		t.Errorf("verdicts %+v of nodes that are not ready, want none", verdicts)
	}
}

func TestIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := map[int32]bool{}
		for _, id := range rapid.SliceOfN(rapid.Int32Range(1, 4095), 0, Ports).Draw(t, "ids") {
			ids[id] = true
		}
		parsed := ParseIDs(FormatIDs(ids))
		if len(parsed) != len(ids) || slices.ContainsFunc(parsed, func(id int32) bool { return !ids[id] }) {
			t.Fatalf("%v of %q, want %v", parsed, FormatIDs(ids), ids)
		}
	})
	if got := ParseIDs("x,5-,1-2000000000"); len(got) != longestIDs {
		t.Errorf("%d ids, want at most %d", len(got), longestIDs)
	}
}
