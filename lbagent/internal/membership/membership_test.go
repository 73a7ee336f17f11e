// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// network is a node that probes others; alive returns whether they answer.
type network struct {
	Membership
	now      time.Time
	nodes    []forwarding.NodeID
	interval time.Duration
	alive    func(id forwarding.NodeID) bool
	// slots are the nodes probed in each Repeat of an interval.
	slots  [][]forwarding.NodeID
	slot   int
	probes int
}

// self is the probing node, with the highest ID, so that it loses ties.
const self forwarding.NodeID = 5000

func newNetwork(others int) *network {
	n := &network{now: time.Unix(1e9, 0), interval: Interval(others)}
	var nodes []forwarding.NodeID
	for i := range others {
		nodes = append(nodes, forwarding.NodeID(i+2))
	}
	n.alive = func(forwarding.NodeID) bool { return true }
	n.probeFrom(self, nodes)
	return n
}

func (n *network) probeFrom(node forwarding.NodeID, others []forwarding.NodeID) {
	n.nodes = others
	n.slots = make([][]forwarding.NodeID, n.interval/Repeat(len(others)))
	for i, id := range others {
		slot := &n.slots[i*len(n.slots)/len(others)]
		*slot = append(*slot, id)
	}
	n.SetNodes(node, others)
}

// closely is how long after a change each probe is followed by a verdict.
const closely = 2 * time.Second

// run probes nodes at their intervals and calls judged with verdicts.
func (n *network) run(duration time.Duration, judged func(v Verdict)) {
	start := n.now
	step := n.interval / time.Duration(len(n.slots))
	for end := n.now.Add(duration); n.now.Before(end); n.now = n.now.Add(step) {
		due := n.slots[n.slot]
		n.slot = (n.slot + 1) % len(n.slots)
		for _, id := range slices.Concat(due, slices.Sorted(maps.Keys(n.Urgent()))) {
			n.probe(id)
		}
		if n.slot > 0 && n.now.Sub(start) >= closely {
			continue
		}
		if v := n.Evaluate(); judged != nil {
			judged(v)
		}
	}
}

func (n *network) probe(id forwarding.NodeID) {
	n.Sent(id, n.now)
	n.probes++
	if n.alive(id) {
		n.Answered(id, 0, n.now)
	}
}

func down(v Verdict) []forwarding.NodeID { return slices.Sorted(maps.Keys(v.Down)) }

func TestProcessExitIsDetected(t *testing.T) {
	for _, others := range []int{2, 10, 249, 999} {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			n := newNetwork(others)
			n.run(time.Second, func(v Verdict) {
				if len(v.Down)+len(v.Held) > 0 {
					t.Fatalf("all nodes reply, but the verdict is %+v", v)
				}
			})
			n.alive = func(id forwarding.NodeID) bool { return id != 2 }
			died := n.now
			var seen time.Time
			n.run(2*time.Second, func(v Verdict) {
				if seen.IsZero() && len(v.Down) > 0 {
					seen = v.Down[2]
				}
			})
			limit := 2*n.interval + (Misses+1)*Repeat(others)
			if took := seen.Sub(died); seen.IsZero() || took > limit {
				t.Errorf("detected after %s, want at most %s", took, limit)
			}
			if v := n.Evaluate(); !slices.Equal(down(v), []forwarding.NodeID{2}) {
				t.Errorf("down nodes %v, want node 2", down(v))
			}
		})
	}
}

// answers reports whether probe and answer arrive, each lost with probability loss.
func answers(random *rand.Rand, loss float64) bool {
	return random.Float64() >= 1-(1-loss)*(1-loss)
}

// Packet loss marks no node as down, dead nodes are detected, and only the node with a lossy link has more
// than half of its paths lossy.
func TestPacketLossIsNoNodeFailure(t *testing.T) {
	for name, test := range map[string]struct {
		loss   float64
		others int
		// only is true if just the path to node 2 is lossy.
		only bool
		want bool
	}{
		"all paths lose 1 %":                  {loss: 0.01, others: 99},
		"all paths lose 10 %":                 {loss: 0.1, others: 99, want: true},
		"the own link loses 10 %":             {loss: 0.1, others: 9, want: true},
		"the own link loses 30 %":             {loss: 0.3, others: 99, want: true},
		"the own link of three nodes":         {loss: 0.3, others: 2, want: true},
		"the link of another node loses 30 %": {loss: 0.3, others: 99, only: true},
		"the link of another of three nodes":  {loss: 0.3, others: 2, only: true},
		"no loss":                             {others: 9},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(test.others)
			random := rand.New(rand.NewPCG(1, 1))
			dead := forwarding.NodeID(0)
			n.alive = func(id forwarding.NodeID) bool {
				return id != dead && (test.only && id != 2 || answers(random, test.loss))
			}
			n.run(10*time.Minute, func(v Verdict) {
				if len(v.Down)+len(v.Held) > 0 {
					t.Fatalf("verdict = %+v", v)
				}
			})
			if v := n.Evaluate(); v.Lossy.IsZero() == test.want {
				t.Errorf("Lossy since %s, want lossy: %t", v.Lossy, test.want)
			}
			if test.others == 2 {
				return
			}
			for _, id := range []forwarding.NodeID{3, 7, 10} {
				dead = id
				died := n.now
				n.run(500*time.Millisecond, nil)
				if at, found := n.Evaluate().Down[id]; !found || at.Sub(died) > 500*time.Millisecond {
					t.Errorf("failure of node %d detected at %s, occurred at %s", id, at, died)
				}
				dead = 0
				n.run(5*time.Second, nil)
			}
		})
	}
}

// Answers later than an interval or the repeats are not lost.
func TestSlowPath(t *testing.T) {
	for _, late := range []int{1, 3, 6} {
		n := newNetwork(9)
		n.alive = func(forwarding.NodeID) bool { return true }
		n.run(time.Second, nil)
		sent := map[forwarding.NodeID]int{}
		// Answer the probe sent late probes earlier.
		n.alive = func(id forwarding.NodeID) bool {
			if sent[id]++; sent[id] > late {
				n.Answered(id, late, n.now)
			}
			return false
		}
		n.run(time.Minute, func(v Verdict) {
			if len(v.Down)+len(v.Held) > 0 || !v.Lossy.IsZero() {
				t.Fatalf("%d probes later: verdict %+v", late, v)
			}
		})
	}
}

// A path has a low MTU after ten unanswered long probes in a row with answered short ones.
func TestNarrowPath(t *testing.T) {
	n := newNetwork(3)
	n.run(time.Second, nil)
	long := func(rounds int, answered bool) {
		for range rounds {
			n.LongSent(2, n.now)
			if answered {
				n.LongAnswered(2)
			}
			n.run(n.interval, nil)
		}
	}
	narrow := func(want bool) {
		t.Helper()
		if got := n.Evaluate().LowMTU; (len(got) == 1) != want {
			t.Fatalf("LowMTU = %v, want %t", got, want)
		}
	}
	long(20, true)
	narrow(false)
	long(longMisses, false)
	narrow(false)
	long(1, false)
	narrow(true)
	long(1, true)
	narrow(false)
	long(longMisses, false)
	n.alive = func(id forwarding.NodeID) bool { return id != 2 }
	n.run(4*n.interval, nil)
	long(3, false)
	narrow(false)
	n.run(time.Second, nil)
	if v := n.Evaluate(); len(v.LowMTU) > 0 || len(v.Down) != 1 {
		t.Errorf("verdict %+v, want node 2 down", v)
	}
}

// A node that never answered is not down, because its programs may not be attached.
func TestSilentSinceStartIsNotDown(t *testing.T) {
	n := newNetwork(4)
	n.alive = func(id forwarding.NodeID) bool { return id != 3 }
	n.run(time.Minute, func(v Verdict) {
		if len(v.Down)+len(v.Held) > 0 {
			t.Fatalf("verdict = %+v", v)
		}
	})
}

// keepsQuorum reports whether this node may declare the lost ones down.
func keepsQuorum(others, lost []forwarding.NodeID) bool {
	half := len(others) + 1 - 2*len(lost)
	return half > 0 || half == 0 && len(others) > 1 && !slices.Contains(lost, slices.Min(others))
}

// Half of the nodes lost at the same time are never down; fewer are.
func TestHalfAtOnceIsAPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		others := rapid.IntRange(1, 40).Draw(t, "others")
		n := newNetwork(others)
		n.run(time.Second, nil)
		lost := rapid.SliceOfNDistinct(rapid.SampledFrom(n.nodes), 1, others, rapid.ID[forwarding.NodeID]).Draw(t, "lost")
		n.alive = func(id forwarding.NodeID) bool { return !slices.Contains(lost, id) }
		partition := !keepsQuorum(n.nodes, lost)
		n.run(70*time.Second, func(v Verdict) {
			if partition && len(v.Down) > 0 {
				t.Fatalf("%d of %d nodes lost: %v are down, want none", len(lost), others+1, down(v))
			}
		})
		v := n.Evaluate()
		slices.Sort(lost)
		if (partition && others > 1) != v.CutOff || !partition && !slices.Equal(down(v), lost) || partition && !slices.Equal(slices.Sorted(maps.Keys(v.Held)), lost) {
			t.Fatalf("nodes %v of %d lost: verdict %+v", lost, others+1, v)
		}
		n.alive = func(forwarding.NodeID) bool { return true }
		n.run(2*MinReturnDelay, nil)
		if v := n.Evaluate(); len(v.Down)+len(v.Held) > 0 {
			t.Fatalf("all nodes are back, but the verdict is %+v", v)
		}
	})
}

func TestSequentialFailuresAreNoPartition(t *testing.T) {
	n := newNetwork(4)
	n.run(time.Second, nil)
	dead := map[forwarding.NodeID]bool{}
	n.alive = func(id forwarding.NodeID) bool { return !dead[id] }
	for _, id := range []forwarding.NodeID{2, 3, 4} {
		dead[id] = true
		n.run(time.Second, nil)
		// With two nodes left, neither can detect which one is cut off.
		if v := n.Evaluate(); len(v.Down) != len(dead) {
			t.Errorf("%d nodes died, down nodes %v", len(dead), down(v))
		}
	}
	dead[5] = true
	n.run(time.Second, nil)
	if v := n.Evaluate(); len(v.Held) != 1 || len(v.Down) != 3 {
		t.Errorf("verdict %+v, want the last node held", v)
	}
}

// A flapping node returns with an increasing delay, until the delay is reset.
func TestFlappingIsRateLimited(t *testing.T) {
	n := newNetwork(4)
	n.run(time.Second, nil)
	back := func() time.Duration {
		n.alive = func(id forwarding.NodeID) bool { return id != 2 }
		n.run(time.Second, nil)
		n.alive = func(forwarding.NodeID) bool { return true }
		answers := n.now
		for len(n.Evaluate().Down) > 0 && n.now.Sub(answers) < time.Hour {
			n.run(n.interval, nil)
		}
		return n.now.Sub(answers)
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if took := back(); took < want*time.Second || took > want*time.Second+2*n.interval {
			t.Errorf("loss %d: up again after %s, want %d s", i+1, took, want)
		}
	}
	n.run(2*StableAfter, nil)
	if took := back(); took > MinReturnDelay+2*n.interval {
		t.Errorf("after a long time without loss: up again after %s", took)
	}
}

// A busy prober reads pending answers before it continues.
func TestBusyProberReadsPendingReplies(t *testing.T) {
	n := newNetwork(10)
	n.run(time.Second, nil)
	for range 20 {
		for _, id := range n.nodes {
			n.Sent(id, n.now)
		}
		n.now = n.now.Add(400 * time.Millisecond)
		for _, id := range n.nodes {
			n.Answered(id, 0, n.now)
		}
		if v := n.Evaluate(); len(v.Down)+len(v.Held) > 0 {
			t.Fatalf("verdict %+v", v)
		}
	}
}

// A removed node is forgotten, and its successor starts anew.
func TestRemovedNodeIsForgotten(t *testing.T) {
	n := newNetwork(4)
	n.run(time.Second, nil)
	n.alive = func(id forwarding.NodeID) bool { return id != 2 }
	n.run(time.Second, nil)
	n.SetNodes(self, n.nodes[1:])
	if v := n.Evaluate(); len(v.Down) > 0 {
		t.Errorf("down nodes %v, want none", down(v))
	}
	n.SetNodes(self, n.nodes)
	n.run(time.Second, nil)
	if v := n.Evaluate(); len(v.Down) > 0 {
		t.Errorf("down nodes %v, want none", down(v))
	}
}

// BenchmarkSecondOf1000Nodes measures one second of probing 999 nodes without sockets.
func BenchmarkSecondOf1000Nodes(b *testing.B) {
	n := newNetwork(999)
	for b.Loop() {
		n.run(time.Second, nil)
	}
	b.ReportMetric(float64(n.probes)/float64(b.N), "probes/op")
}

func (n *network) resumed() *network {
	next := newNetwork(len(n.nodes))
	next.now = n.now
	for _, known := range n.Known() {
		next.Resume(known)
	}
	return next
}

// A restarted agent restores the down nodes and detects those that died meanwhile. Nodes that never replied
// are not down.
func TestResume(t *testing.T) {
	n := newNetwork(9)
	n.alive = func(id forwarding.NodeID) bool { return id != 4 }
	n.run(time.Second, nil)
	n.alive = func(id forwarding.NodeID) bool { return id != 2 && id != 4 }
	n.run(time.Second, nil)
	if v := Resumed(n.Known()); !slices.Equal(down(v), []forwarding.NodeID{2}) {
		t.Fatalf("first verdict %+v, want node 2 down", v)
	}

	next := n.resumed()
	next.alive = func(id forwarding.NodeID) bool { return id > 4 }
	died := next.now
	next.run(time.Second, func(v Verdict) {
		if _, found := v.Down[2]; !found || v.CutOff {
			t.Fatalf("verdict %+v, want node 2 down", v)
		}
	})
	v := next.Evaluate()
	if !slices.Equal(down(v), []forwarding.NodeID{2, 3}) || v.Down[3].Sub(died) > (Misses+1)*next.interval {
		t.Errorf("down nodes %v after %s, want nodes 2 and 3", down(v), v.Down[3].Sub(died))
	}
	next.alive = func(id forwarding.NodeID) bool { return id != 4 }
	next.run(MinReturnDelay+time.Second, nil)
	if v := next.Evaluate(); len(v.Down) > 0 {
		t.Errorf("down nodes %v although they reply", down(v))
	}
}

// A restarted agent on a cut-off node marks no node as down.
func TestResumeCutOff(t *testing.T) {
	n := newNetwork(9)
	n.run(time.Second, nil)
	next := n.resumed()
	next.alive = func(forwarding.NodeID) bool { return false }
	next.run(5*time.Second, func(v Verdict) {
		if len(v.Down) > 0 {
			t.Fatalf("verdict = %+v", v)
		}
	})
	if v := next.resumed().Evaluate(); !v.CutOff || len(v.Down) > 0 {
		t.Errorf("verdict of the restarted agent = %+v", v)
	}
}

func TestChangesCountWhatIsKnown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := newNetwork(rapid.IntRange(1, 6).Draw(t, "others"))
		dead := map[forwarding.NodeID]bool{}
		n.alive = func(id forwarding.NodeID) bool { return !dead[id] }
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			dead[rapid.SampledFrom(n.nodes).Draw(t, "node")] = rapid.Bool().Draw(t, "dead")
			for range rapid.IntRange(1, 30).Draw(t, "rounds") {
				before, changes := n.Known(), n.Changes()
				n.run(n.interval, nil)
				if after := n.Known(); !slices.Equal(before, after) && n.Changes() == changes {
					t.Fatalf("Known changed from %+v to %+v, but Changes did not", before, after)
				}
			}
			n.now = n.now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "pause")) * time.Second)
		}
	})
}

// A node that receives packets of a router is not cut off in a cluster of any size.
func TestRouterPacketsProveConnection(t *testing.T) {
	for name, test := range map[string]struct {
		others int
		// heard is the age of the last packet from a router; zero means none.
		heard time.Duration
		want  time.Duration
	}{
		"no router":           {1, 0, 0},
		"router reachable":    {1, 550 * time.Millisecond, 850 * time.Millisecond},
		"slow router":         {1, 3250 * time.Millisecond, 3550 * time.Millisecond},
		"more than two nodes": {9, 550 * time.Millisecond, 850 * time.Millisecond},
	} {
		n := newNetwork(test.others)
		listen := func(time.Time) time.Time { return time.Time{} }
		if test.heard > 0 {
			listen = func(now time.Time) time.Time { return now.Add(-test.heard) }
		}
		n.run(time.Second, nil)
		n.alive = func(forwarding.NodeID) bool { return false }
		died, seen := n.now, time.Duration(0)
		for n.now.Sub(died) < 10*time.Second {
			n.SetRouterSeen(listen(n.now))
			n.run(n.interval, nil)
			if v := n.Evaluate(); len(v.Down) > 0 && seen == 0 {
				seen = n.now.Sub(died)
			}
		}
		if test.want == 0 && seen != 0 || seen > test.want+2*n.interval || test.want > 0 && seen < test.heard {
			t.Errorf("%s: down after %s, want %s", name, seen, test.want)
		}
		listen = func(time.Time) time.Time { return time.Time{} }
		n.SetRouterSeen(listen(n.now))
		if v := n.Evaluate(); (len(v.Down) > 0) != (test.want > 0) {
			t.Errorf("%s: verdict without the router = %+v", name, v)
		}
	}
}

// A cut-off node detects the loss of the router within the detection time and never marks the other node as
// down.
func TestCutOffNodeOfTwo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := newNetwork(1)
		n.run(time.Second, nil)
		detection := time.Duration(rapid.IntRange(50, 5000).Draw(t, "detection time, ms")) * time.Millisecond
		report := time.Duration(rapid.IntRange(0, 249).Draw(t, "report, ms")) * time.Millisecond
		n.alive = func(forwarding.NodeID) bool { return false }
		cut := n.now
		for n.now.Sub(cut) < 10*time.Second {
			heard := time.Time{}
			if n.now.Sub(cut) <= detection+report {
				heard = n.now.Add(-detection - 250*time.Millisecond)
			}
			n.SetRouterSeen(heard)
			n.run(n.interval, func(v Verdict) {
				if len(v.Down) > 0 {
					t.Fatalf("after %s: verdict %+v", n.now.Sub(cut), v)
				}
			})
		}
	})
}
