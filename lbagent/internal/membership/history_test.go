// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// detection is the delay until a packet received from a router is detected.
const detection = 550 * time.Millisecond

// step is an event with the verdict 1.5 s after its detection.
type step struct {
	after      time.Duration
	die, live  []forwarding.NodeID
	down, held []forwarding.NodeID
	cutOff     bool
}

// Regression tests: each history once produced a wrong verdict.
func TestHistories(t *testing.T) {
	type ids = []forwarding.NodeID
	for name, test := range map[string]struct {
		others int
		heard  bool
		steps  []step
	}{
		"second loss shortly after": {others: 4, steps: []step{
			{die: ids{2}, down: ids{2}},
			{after: 20 * time.Second, die: ids{3}, down: ids{2, 3}},
			{after: 20 * time.Second, die: ids{4}, down: ids{2, 3, 4}},
		}},
		"half lost with the second loss": {others: 3, steps: []step{
			{die: ids{2}, down: ids{2}},
			{after: 20 * time.Second, die: ids{3}, down: ids{2, 3}},
		}},
		"last two nodes, no router": {others: 2, steps: []step{
			{die: ids{2}, down: ids{2}},
			{after: 20 * time.Second, die: ids{3}, down: ids{2}, held: ids{3}},
			{after: time.Hour, down: ids{2}, held: ids{3}},
			{live: ids{2}, held: nil, down: ids{3}},
		}},
		"last two nodes, router reachable": {others: 2, heard: true, steps: []step{
			{die: ids{2}, down: ids{2}},
			{after: 20 * time.Second, die: ids{3}, down: ids{2, 3}},
			{after: time.Hour, live: ids{2, 3}},
		}},
		"half lost at once": {others: 5, steps: []step{
			{die: ids{2, 3, 4}, held: ids{2, 3, 4}, cutOff: true},
			{after: time.Hour, held: ids{2, 3, 4}, cutOff: true},
			{live: ids{2}, down: ids{3, 4}},
		}},
		"half lost at once, router reachable": {others: 5, heard: true, steps: []step{
			{die: ids{2, 3, 4}, down: ids{2, 3, 4}, cutOff: true},
			{after: 20 * time.Second, die: ids{5}, down: ids{2, 3, 4, 5}, cutOff: true},
			{after: 20 * time.Second, live: ids{4, 5}, down: ids{2, 3}},
		}},
		"cut off from the nodes, router reachable": {others: 2, heard: true, steps: []step{
			{die: ids{2, 3}, down: ids{2, 3}, cutOff: true},
			{after: time.Hour, live: ids{3}, down: ids{2}},
		}},
		"cut off": {others: 9, steps: []step{
			{die: ids{2}, down: ids{2}},
			{after: 20 * time.Second, die: ids{3, 4, 5, 6, 7, 8, 9, 10}, down: ids{2}, held: ids{3, 4, 5, 6, 7, 8, 9, 10}, cutOff: true},
			{after: 20 * time.Second, live: ids{3, 4, 5, 6, 7, 8, 9, 10}, down: ids{2}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(test.others)
			for i, step := range test.steps {
				h.pass(step.after, test.heard)
				h.change(step.die, step.live)
				h.pass(1500*time.Millisecond, test.heard)
				v := h.Evaluate()
				if !slices.Equal(down(v), step.down) || !slices.Equal(slices.Sorted(maps.Keys(v.Held)), step.held) || v.CutOff != step.cutOff {
					t.Fatalf("step %d: verdict %+v, want down %v, held %v, cut off %t", i, v, step.down, step.held, step.cutOff)
				}
			}
		})
	}
}

type history struct {
	*network
	dead   map[forwarding.NodeID]bool
	judged func(v Verdict)
}

func newHistory(others int) *history {
	h := &history{network: newNetwork(others), dead: map[forwarding.NodeID]bool{}}
	h.alive = func(id forwarding.NodeID) bool { return !h.dead[id] }
	h.pass(time.Second, false)
	return h
}

func (h *history) change(die, live []forwarding.NodeID) {
	for _, id := range die {
		h.dead[id] = true
	}
	for _, id := range live {
		delete(h.dead, id)
	}
}

// pass advances time, with or without packets of a router. The middle of long times is skipped.
func (h *history) pass(duration time.Duration, heard bool) {
	const most = 4 * time.Second
	if duration > most {
		h.pass(most/2, heard)
		h.now = h.now.Add(duration - most)
		duration = most / 2
	}
	for end := h.now.Add(duration); h.now.Before(end); {
		if heard {
			h.SetRouterSeen(h.now.Add(-detection))
		} else {
			h.SetRouterSeen(time.Time{})
		}
		h.run(h.interval, h.judged)
	}
}

// A node that is down stays down until it replies. While a router is reachable, exactly the dead nodes are
// down. Otherwise a minority of the nodes that are up is down and a majority is held. This node is cut off
// once it lost half of three or more nodes.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(rapid.IntRange(1, 12).Draw(t, "others"))
		was, lostHalf := Verdict{}, false
		h.judged = func(v Verdict) {
			for id := range was.Down {
				if _, still := v.Down[id]; !still && h.dead[id] {
					t.Fatalf("node %d is dead, but considered up again: %+v", id, v)
				}
			}
			was = v
		}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			living := slices.DeleteFunc(slices.Clone(h.nodes), func(id forwarding.NodeID) bool { return h.dead[id] })
			up := len(living) + 1
			die := rapid.SliceOfDistinct(rapid.SampledFrom(h.nodes), rapid.ID[forwarding.NodeID]).Draw(t, "die")
			die = slices.DeleteFunc(die, func(id forwarding.NodeID) bool { return h.dead[id] })
			h.change(die, nil)
			heard := rapid.Bool().Draw(t, "heard")
			h.pass(time.Duration(rapid.IntRange(1500, 90_000).Draw(t, "wait, ms"))*time.Millisecond, heard)
			dead := slices.Sorted(maps.Keys(h.dead))
			half := len(die) > 0 && !keepsQuorum(living, die)
			lostHalf = lostHalf || half && up > 2
			switch v := h.Evaluate(); {
			case half && up > 2 && !v.CutOff || v.CutOff && !lostHalf:
				t.Fatalf("nodes %v of %d died: verdict %+v", die, up, v)
			case heard && (!slices.Equal(down(v), dead) || len(v.Held) > 0):
				t.Fatalf("nodes %v of %d others are dead, router packets arrive: verdict %+v", dead, len(h.nodes), v)
			case !heard && half != (len(v.Held) > 0):
				t.Fatalf("nodes %v of %d died: verdict %+v", die, up, v)
			}
			live := rapid.SliceOfDistinct(rapid.SampledFrom(h.nodes), rapid.ID[forwarding.NodeID]).Draw(t, "live")
			h.change(nil, live)
			h.pass(MaxReturnDelay+time.Second, true)
		}
	})
}

// Both sides of a partition agree: the larger part, or the half with the lowest ID, declares the others
// down, and the other part is cut off. Of two nodes neither is.
func TestNetworkPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(2, 12).Draw(t, "nodes")
		part := rapid.IntRange(1, nodes-1).Draw(t, "first part")
		all := make([]forwarding.NodeID, nodes)
		for i := range all {
			all[i] = forwarding.NodeID(i + 1)
		}
		all = rapid.Permutation(all).Draw(t, "ids")
		parts := [][]forwarding.NodeID{all[:part], all[part:]}
		for i, own := range parts {
			other := parts[1-i]
			wins := len(own) > len(other) || len(own) == len(other) && nodes > 2 && slices.Min(own) == 1
			for _, self := range own {
				n := newNetwork(nodes - 1)
				n.probeFrom(self, slices.DeleteFunc(slices.Clone(all), func(id forwarding.NodeID) bool { return id == self }))
				n.run(time.Second, nil)
				n.alive = func(id forwarding.NodeID) bool { return slices.Contains(own, id) }
				n.run(time.Second, func(v Verdict) {
					if wins && (v.CutOff || len(v.Held) > 0) || !wins && len(v.Down) > 0 {
						t.Fatalf("node %d of %v: verdict %+v", self, parts, v)
					}
				})
				v := n.Evaluate()
				if wins && len(v.Down) != len(other) || v.CutOff != (!wins && nodes > 2) {
					t.Fatalf("node %d of %v: verdict %+v", self, parts, v)
				}
			}
		}
	})
}
