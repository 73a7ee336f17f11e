// SPDX-License-Identifier: Apache-2.0

package rotation

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
)

var (
	start    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	settings = Settings{Lifetime: 30 * 24 * time.Hour, NodeTimeout: 24 * time.Hour}
)

func ring(sending uint32, required bool, accepted ...uint32) tunnelkey.Ring {
	return tunnelkey.Ring{Accepted: accepted, Sending: sending, Required: required}
}

func state(phase tunnelkey.Phase, sending uint32, required bool, accepted ...uint32) *tunnelkey.State {
	s := &tunnelkey.State{Phase: phase, Sending: sending, Required: required, Since: start, Made: start}
	for _, generation := range accepted {
		s.Accepted = append(s.Accepted, tunnelkey.New(generation))
	}
	return s
}

func TestFirst(t *testing.T) {
	none := flowhash.Seed{}
	first := First(nil, none, start)
	if first.Phase != tunnelkey.Publishing || first.Newest().Generation != 1 || first.Sending != 0 || first.Required {
		t.Errorf("first State = %+v", first)
	}
	if other := First(nil, none, start); other.Newest().Secret == first.Newest().Secret || other.Seed == first.Seed {
		t.Error("two States share a secret or seed")
	}
	// After a loss no number is reused, and no untagged packets are accepted.
	again := First([]Node{{Name: "a", Ring: ring(3, true, 3), Served: true}, {Name: "b", Ring: ring(3, false, 3, 7)}}, none, start)
	if again.Newest().Generation != 8 || !again.Required || again.Sending != 0 {
		t.Errorf("State after a loss = %+v", again)
	}
	if first.Seed == none || again.Seed != none {
		t.Errorf("seed = %v, with running agents %v", first.Seed, again.Seed)
	}
	if waiting := First([]Node{{Name: "booted"}}, none, start); waiting.Seed == none {
		t.Error("no seed although the only agent waits for the Secret")
	}
	for _, nodes := range [][]Node{nil, {{Name: "a"}}} {
		if kept := First(nodes, first.Seed, start); kept.Seed != first.Seed {
			t.Errorf("seed after a loss = %v, want %v", kept.Seed, first.Seed)
		}
	}
}

func TestNext(t *testing.T) {
	late := start.Add(settings.NodeTimeout)
	lost := func(does tunnelkey.Ring, since time.Time) Node {
		return Node{Name: "lost", Ring: does, LostSince: since}
	}
	old := Node{Name: "old"}
	both := func(does tunnelkey.Ring) []Node { return []Node{{Name: "a", Ring: does}, {Name: "b", Ring: does}} }
	tests := []struct {
		name        string
		state       *tunnelkey.State
		nodes       []Node
		isRequested bool
		now         time.Time
		// want are the phase, the generation to send with, and whether tags are required.
		phase    tunnelkey.Phase
		sending  uint32
		required bool
		accepted []uint32
		waits    []string
		left     []string
		again    time.Duration
	}{
		{
			name: "minimum phase not reached", state: state(tunnelkey.Publishing, 1, true, 1, 2), nodes: both(ring(1, true, 1, 2)), now: start.Add(time.Second),
			phase: tunnelkey.Publishing, sending: 1, required: true, accepted: []uint32{1, 2}, again: MinPhase - time.Second,
		},
		{
			name: "all nodes accept", state: state(tunnelkey.Publishing, 1, true, 1, 2), nodes: both(ring(1, true, 1, 2)), now: start.Add(MinPhase),
			phase: tunnelkey.Switching, sending: 2, required: true, accepted: []uint32{1, 2}, again: MinPhase,
		},
		{
			name:  "one node does not accept",
			state: state(tunnelkey.Publishing, 1, true, 1, 2), now: start.Add(time.Hour),
			nodes: append(both(ring(1, true, 1, 2)), Node{Name: "c", Ring: ring(1, true, 1)}),
			phase: tunnelkey.Publishing, sending: 1, required: true, accepted: []uint32{1, 2},
			waits: []string{"c"}, again: 23 * time.Hour,
		},
		{
			name:  "one node never accepts",
			state: state(tunnelkey.Publishing, 1, true, 1, 2), now: late,
			nodes: append(both(ring(1, true, 1, 2)), Node{Name: "c", Ring: ring(1, true, 1)}),
			phase: tunnelkey.Switching, sending: 2, required: true, accepted: []uint32{1, 2}, left: []string{"c"}, again: MinPhase,
		},
		{
			name:  "one node sends with the old key",
			state: state(tunnelkey.Switching, 2, true, 1, 2), now: start.Add(time.Hour),
			nodes: append(both(ring(2, true, 1, 2)), Node{Name: "c", Ring: ring(1, true, 1, 2)}),
			phase: tunnelkey.Switching, sending: 2, required: true, accepted: []uint32{1, 2},
			waits: []string{"c"}, again: 23 * time.Hour,
		},
		{
			name: "all nodes send", state: state(tunnelkey.Switching, 2, true, 1, 2), nodes: both(ring(2, true, 1, 2)), now: start.Add(time.Minute),
			phase: tunnelkey.Steady, sending: 2, required: true, accepted: []uint32{2}, again: MinPhase,
		},
		{
			name:  "an agent without tags blocks the first key",
			state: state(tunnelkey.Publishing, 0, false, 1), nodes: append(both(ring(0, false, 1)), old), now: late.Add(1000 * time.Hour),
			phase: tunnelkey.Publishing, accepted: []uint32{1}, waits: []string{"old"},
		},
		{
			name:  "a recently lost node does not block",
			state: state(tunnelkey.Publishing, 0, false, 1), nodes: append(both(ring(0, false, 1)), lost(ring(0, false), start)), now: late,
			phase: tunnelkey.Switching, sending: 1, accepted: []uint32{1}, left: []string{"lost"}, again: MinPhase,
		},
		{
			name:  "a node lost for an hour blocks",
			state: state(tunnelkey.Publishing, 0, false, 1), nodes: append(both(ring(0, false, 1)), lost(ring(0, false), start)), now: start.Add(time.Hour),
			phase: tunnelkey.Publishing, accepted: []uint32{1}, waits: []string{"lost"}, again: 23 * time.Hour,
		},
		{
			name: "all nodes tag", state: state(tunnelkey.Steady, 1, false, 1), nodes: both(ring(1, false, 1)), now: start.Add(MinPhase),
			phase: tunnelkey.Steady, sending: 1, required: true, accepted: []uint32{1}, again: MinPhase,
		},
		{
			name:  "one node does not tag",
			state: state(tunnelkey.Steady, 1, false, 1), nodes: append(both(ring(1, false, 1)), old), now: late,
			phase: tunnelkey.Steady, sending: 1, accepted: []uint32{1}, waits: []string{"old"}, again: 29 * 24 * time.Hour,
		},
		{
			name: "recent key", state: state(tunnelkey.Steady, 1, true, 1), nodes: both(ring(1, true, 1)), now: start.Add(24 * time.Hour),
			phase: tunnelkey.Steady, sending: 1, required: true, accepted: []uint32{1}, again: 29 * 24 * time.Hour,
		},
		{
			name: "old", state: state(tunnelkey.Steady, 1, true, 1), nodes: both(ring(1, true, 1)), now: start.Add(settings.Lifetime),
			phase: tunnelkey.Publishing, sending: 1, required: true, accepted: []uint32{1, 2}, again: MinPhase,
		},
		{
			name: "rotation requested", state: state(tunnelkey.Steady, 1, true, 1), nodes: both(ring(1, true, 1)), isRequested: true, now: start.Add(time.Hour),
			phase: tunnelkey.Publishing, sending: 1, required: true, accepted: []uint32{1, 2}, again: MinPhase,
		},
		{
			name: "no node", state: state(tunnelkey.Publishing, 0, false, 1), now: start.Add(MinPhase),
			phase: tunnelkey.Switching, sending: 1, accepted: []uint32{1}, again: MinPhase,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := *test.state
			step := Next(test.state, test.nodes, settings, test.isRequested, test.now)
			next := step.Next
			if next.Phase != test.phase || next.Sending != test.sending || next.Required != test.required ||
				!slices.Equal(tunnelkey.Adopt(tunnelkey.Ring{}, next).Accepted, test.accepted) {
				t.Errorf("next State = %+v, want %+v", next, test)
			}
			if !slices.Equal(step.WaitingFor, test.waits) || !slices.Equal(step.Unconfirmed, test.left) || step.RequeueAfter != test.again {
				t.Errorf("step = %+v, want %+v", step, test)
			}
			if !test.state.Equal(&before) {
				t.Error("the input State was modified")
			}
			if changed := !next.Equal(test.state); changed != next.Since.After(start) {
				t.Errorf("changed: %t, since %s", changed, next.Since)
			}
		})
	}
}

func TestNoLifetime(t *testing.T) {
	step := Next(state(tunnelkey.Steady, 1, true, 1), nil, Settings{NodeTimeout: time.Hour}, false, start.Add(1e6*time.Hour))
	if step.Next.Phase != tunnelkey.Steady || step.RequeueAfter != 0 {
		t.Errorf("step = %+v", step)
	}
}
