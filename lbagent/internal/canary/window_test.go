// SPDX-License-Identifier: Apache-2.0

package canary

import (
	"maps"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Periods of docs/bgp.md, in rounds: a port must fail for four seconds, and the state is pending for six.
const (
	lossRounds    = int(4 * time.Second / interval)
	pendingRounds = int(6 * time.Second / interval)
)

// play runs rounds: each port is answered by a node, by no node for 0, or for a negative number to short
// probes only.
func play(w *window, rounds int, answer func(port int) int) {
	for range rounds {
		for at := range canary.Ports {
			w.probed(at, 1, 2)
			node := answer(at)
			if node != 0 {
				w.answered(at, 1, forwarding.NodeID(max(node, -node)))
			}
			if node > 0 {
				w.answered(at, 2, forwarding.NodeID(node))
			}
		}
		w.end(true)
	}
}

// TestWindowOutlivesReset checks that a node counts as reached for some rounds without a reply: a session
// reset removes its route for that time, and other nodes receive all probes.
func TestWindowOutlivesReset(t *testing.T) {
	var w window
	three := func(port int) int { return 1 + port%3 }
	all := map[int32]bool{1: true, 2: true, 3: true}
	play(&w, pendingRounds, three)
	for round := range lossRounds - 1 {
		play(&w, 1, func(port int) int { return 1 + port%2 })
		if r := w.result(); r.Unanswered != 0 || !maps.Equal(r.Reached, all) {
			t.Errorf("result %+v, %d rounds after the withdrawal", r, round+1)
		}
	}
	play(&w, 1, func(port int) int { return 1 + port%2 })
	if r := w.result(); r.Unanswered != 0 || !maps.Equal(r.Reached, map[int32]bool{1: true, 2: true}) {
		t.Errorf("result %+v after %d rounds without the route", r, lossRounds)
	}
	play(&w, 1, three)
	if r := w.result(); !maps.Equal(r.Reached, all) {
		t.Errorf("result %+v after the route was announced again", r)
	}
}

func TestWindow(t *testing.T) {
	var w window
	both := func(port int) int { return 1 + port%2 }
	play(&w, pendingRounds-1, both)
	if r := w.result(); r.Known || r.Announced {
		t.Errorf("result %+v after few rounds, want Known = false", r)
	}
	play(&w, 1, both)
	healthy := Result{Announced: true, Known: true, Reached: map[int32]bool{1: true, 2: true}, Short: map[int32]bool{}}
	if r := w.result(); !r.equal(healthy) {
		t.Errorf("%+v, want %+v", r, healthy)
	}
	play(&w, lossRounds-1, func(int) int { return 0 })
	if r := w.result(); !r.equal(healthy) {
		t.Errorf("result %+v after a short loss, want %+v", r, healthy)
	}
	play(&w, 1, func(port int) int { return -both(port) })
	if r := w.result(); !r.equal(healthy) {
		t.Errorf("result %+v after the loss of all probes and of long probes, want %+v", r, healthy)
	}
	play(&w, lossRounds, func(port int) int { return port % 2 })
	if r := w.result(); r.Unanswered != canary.Ports/2 || !maps.Equal(r.Reached, map[int32]bool{1: true}) {
		t.Errorf("result %+v with one of two nodes lost", r)
	}
	play(&w, lossRounds, func(port int) int { return []int{1, -2}[port%2] })
	if r := w.result(); r.Unanswered != 0 || !maps.Equal(r.Short, map[int32]bool{2: true}) {
		t.Errorf("result %+v with one node that drops long packets", r)
	}
	w.end(false)
	if r := w.result(); r.Announced {
		t.Error("Announced = true, but the route was not announced in the last round")
	}
	if w.answered(0, 1, 1) {
		t.Error("a reply to an earlier round was counted")
	}
}
