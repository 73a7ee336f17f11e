// SPDX-License-Identifier: Apache-2.0

// Package rotation decides the next step in the life of the tunnel's key, so that no packet
// meets a node that refuses it: nodes first learn to accept a new key, then send with it, and
// only then forget the old one. It is pure.
package rotation

import (
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
)

// Settle is how long a phase lasts at least. Meanwhile packets that are on their way arrive,
// and an agent that has just started reads the newest Secret.
const Settle = 5 * time.Second

// Node is what is known of a node whose agent has run.
type Node struct {
	Name string
	// Does is what its agent reported last. Zero: nothing, as an agent without tags.
	Does tunnelkey.Ring
	// LostSince is since when nothing was heard of the node itself. Zero: it is there.
	LostSince time.Time
	// Served reports whether its agent has ever had a data plane. One that waits for the first
	// Secret has none, and says only that the node has booted.
	Served bool
}

// Settings are those of the operator.
type Settings struct {
	// Lifetime is the age at which a key is replaced. Zero: never.
	Lifetime time.Duration
	// NodeTimeout is how long a phase waits for nodes that do not confirm it.
	NodeTimeout time.Duration
}

// Step is what follows from a State.
type Step struct {
	// Next is the State to store. It may be the same.
	Next *tunnelkey.State
	// Again is after how long to look again, though nothing was heard. Zero: no such time.
	Again time.Duration
	// Waits are the names of the nodes that hold the next step up, sorted.
	Waits []string
	// Until is when the step is done without them. Zero: it is not.
	Until time.Time
	// Left are the names of the nodes without whose confirmation this step is done.
	Left []string
}

// First returns the State where there is no Secret, with one new key. Nodes that have keys
// keep them meanwhile.
//
// seed is that of the flow hash which the Secret had before it was lost; zero where it had none or
// nobody knows it. A new one is made where no node has ever served: later it would move flows.
func First(nodes []Node, seed flowhash.Seed, now time.Time) *tunnelkey.State {
	if seed == (flowhash.Seed{}) && !slices.ContainsFunc(nodes, func(node Node) bool { return node.Served }) {
		seed = flowhash.NewSeed()
	}
	var last uint32
	required := false
	for _, node := range nodes {
		required = required || node.Does.Required
		last = max(last, node.Does.Sending)
		for _, generation := range node.Does.Accepted {
			last = max(last, generation)
		}
	}
	now = now.Truncate(time.Second)
	return &tunnelkey.State{
		Phase:    tunnelkey.Publishing,
		Accepted: []tunnelkey.Key{tunnelkey.New(last + 1)},
		Seed:     seed,
		Required: required,
		Since:    now,
		Made:     now,
	}
}

// Next returns the step that a State is ready for. asked is whether somebody asks for a new
// key; it is done when the Step's phase is another.
func Next(state *tunnelkey.State, nodes []Node, settings Settings, asked bool, now time.Time) Step {
	if wait := state.Since.Add(Settle).Sub(now); wait > 0 {
		return Step{Next: state, Again: wait}
	}
	newest := state.Newest().Generation
	switch state.Phase {
	case tunnelkey.Publishing:
		step := confirm(state, nodes, settings, now, func(ring tunnelkey.Ring) bool { return slices.Contains(ring.Accepted, newest) })
		if len(step.Waits) == 0 {
			step.Next = advance(state, tunnelkey.Switching, now)
			step.Next.Sending, step.Again = newest, Settle
		}
		return step
	case tunnelkey.Switching:
		step := confirm(state, nodes, settings, now, func(ring tunnelkey.Ring) bool { return ring.Sending == newest })
		if len(step.Waits) == 0 {
			step.Next = advance(state, tunnelkey.Steady, now)
			step.Next.Accepted, step.Again = []tunnelkey.Key{state.Newest()}, Settle
		}
		return step
	default:
		return steady(state, nodes, settings, asked, now)
	}
}

// advance copies a State into another phase.
func advance(state *tunnelkey.State, phase tunnelkey.Phase, now time.Time) *tunnelkey.State {
	next := *state
	next.Accepted = slices.Clone(state.Accepted)
	next.Phase, next.Since = phase, now.Truncate(time.Second)
	return &next
}

// confirm returns a Step that waits for the nodes that do not what they should, until the
// phase has lasted too long.
func confirm(
	state *tunnelkey.State, nodes []Node, settings Settings, now time.Time, does func(tunnelkey.Ring) bool,
) Step {
	if !state.Required && state.Sending == 0 {
		// A node whose agent knows no tags may never confirm, and serves all the same.
		return patient(state, nodes, settings, now, does)
	}
	step := Step{Next: state}
	for _, node := range nodes {
		if !does(node.Does) {
			step.Waits = append(step.Waits, node.Name)
		}
	}
	slices.Sort(step.Waits)
	if len(step.Waits) == 0 {
		return step
	}
	step.Until = state.Since.Add(settings.NodeTimeout)
	if step.Again = step.Until.Sub(now); step.Again <= 0 {
		return Step{Next: state, Left: step.Waits}
	}
	return step
}

// patient is confirm without a limit. Only nodes that are lost for long are not waited for.
func patient(
	state *tunnelkey.State, nodes []Node, settings Settings, now time.Time, does func(tunnelkey.Ring) bool,
) Step {
	step := Step{Next: state}
	for _, node := range nodes {
		if does(node.Does) {
			continue
		}
		if node.LostSince.IsZero() {
			step.Waits = append(step.Waits, node.Name)
			continue
		}
		if wait := node.LostSince.Add(settings.NodeTimeout).Sub(now); wait > 0 {
			step.Waits, step.Again = append(step.Waits, node.Name), soonest(step.Again, wait)
		} else {
			step.Left = append(step.Left, node.Name)
		}
	}
	slices.Sort(step.Waits)
	slices.Sort(step.Left)
	return step
}

// steady requires tags once every node sends them, and begins a change of keys when it is
// time.
func steady(state *tunnelkey.State, nodes []Node, settings Settings, asked bool, now time.Time) Step {
	step := Step{Next: state}
	if !state.Required {
		step = patient(state, nodes, settings, now, func(ring tunnelkey.Ring) bool { return ring.Sending != 0 })
		if len(step.Waits) == 0 {
			step.Next = advance(state, tunnelkey.Steady, now)
			step.Next.Required, step.Again = true, Settle
			return step
		}
		step.Left = nil
	}
	age := state.Made.Add(settings.Lifetime).Sub(now)
	if asked || settings.Lifetime > 0 && age <= 0 {
		step = Step{Next: advance(state, tunnelkey.Publishing, now), Again: Settle}
		step.Next.Accepted = append(step.Next.Accepted, tunnelkey.New(state.Newest().Generation+1))
		step.Next.Made = step.Next.Since
		return step
	}
	if settings.Lifetime > 0 {
		step.Again = soonest(step.Again, age)
	}
	return step
}

// Lagging are the names of the nodes that do not what a State asks of them, sorted.
func Lagging(state *tunnelkey.State, nodes []Node) []string {
	newest := state.Newest().Generation
	var names []string
	for _, node := range nodes {
		does := node.Does.Sending == newest
		if state.Phase == tunnelkey.Publishing {
			does = slices.Contains(node.Does.Accepted, newest)
		}
		if !does {
			names = append(names, node.Name)
		}
	}
	slices.Sort(names)
	return names
}

// soonest returns the shorter of two waits, of which 0 means none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
