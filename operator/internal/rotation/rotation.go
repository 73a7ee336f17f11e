// SPDX-License-Identifier: Apache-2.0

// Package rotation plans the rotation of the tunnel key so that no node drops packets of another: nodes first
// accept a new key, then send with it, and only then remove the old one. It is pure.
package rotation

import (
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
)

// MinPhase is the minimum duration of a phase, for packets in flight and agents that just started.
const MinPhase = 5 * time.Second

// A Node is the state of a node whose agent has run.
type Node struct {
	Name string
	// Ring is the ring that its agent reported last, or zero for no ring or an agent without tags.
	Ring tunnelkey.Ring
	// LostSince is the time since when the node itself is lost, or zero.
	LostSince time.Time
	// Served is true if its agent ever had a data plane; otherwise it is waiting for the first Secret.
	Served bool
}

// Settings configures the rotation.
type Settings struct {
	// Lifetime is the age at which a key is replaced. Zero: never.
	Lifetime time.Duration
	// NodeTimeout is how long a phase waits for nodes that do not confirm it.
	NodeTimeout time.Duration
}

// A Step is the result for a State.
type Step struct {
	// Next is the State to store, possibly unchanged.
	Next *tunnelkey.State
	// RequeueAfter is the delay until the next check without an event, or zero.
	RequeueAfter time.Duration
	// WaitingFor are the names of the nodes that delay the next step, sorted.
	WaitingFor []string
	// Deadline is the time when the step is taken without them. Zero: never.
	Deadline time.Time
	// Unconfirmed are the names of the nodes that have not confirmed this step, which is taken nevertheless.
	Unconfirmed []string
}

// First returns the State for a missing Secret, with one new key; nodes keep theirs meanwhile. seed is the
// seed of the flow hash from the lost Secret, or zero. A new seed is chosen only if no node has served yet:
// later it would move flows.
func First(nodes []Node, seed flowhash.Seed, now time.Time) *tunnelkey.State {
	if seed == (flowhash.Seed{}) && !slices.ContainsFunc(nodes, func(node Node) bool { return node.Served }) {
		seed = flowhash.NewSeed()
	}
	var last uint32
	required := false
	for _, node := range nodes {
		required = required || node.Ring.Required
		last = max(last, node.Ring.Sending)
		for _, generation := range node.Ring.Accepted {
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

// Next returns the next step. isRequested starts a rotation to a new key, until the phase changes.
func Next(state *tunnelkey.State, nodes []Node, settings Settings, isRequested bool, now time.Time) Step {
	if wait := state.Since.Add(MinPhase).Sub(now); wait > 0 {
		return Step{Next: state, RequeueAfter: wait}
	}
	newest := state.Newest().Generation
	switch state.Phase {
	case tunnelkey.Publishing:
		step := confirm(state, nodes, settings, now, func(ring tunnelkey.Ring) bool { return slices.Contains(ring.Accepted, newest) })
		if len(step.WaitingFor) == 0 {
			step.Next = advance(state, tunnelkey.Switching, now)
			step.Next.Sending, step.RequeueAfter = newest, MinPhase
		}
		return step
	case tunnelkey.Switching:
		step := confirm(state, nodes, settings, now, func(ring tunnelkey.Ring) bool { return ring.Sending == newest })
		if len(step.WaitingFor) == 0 {
			step.Next = advance(state, tunnelkey.Steady, now)
			step.Next.Accepted, step.RequeueAfter = []tunnelkey.Key{state.Newest()}, MinPhase
		}
		return step
	default:
		return steady(state, nodes, settings, isRequested, now)
	}
}

func advance(state *tunnelkey.State, phase tunnelkey.Phase, now time.Time) *tunnelkey.State {
	next := *state
	next.Accepted = slices.Clone(state.Accepted)
	next.Phase, next.Since = phase, now.Truncate(time.Second)
	return &next
}

// confirm waits for nodes without the required ring, up to the timeout of the phase.
func confirm(
	state *tunnelkey.State, nodes []Node, settings Settings, now time.Time, does func(tunnelkey.Ring) bool,
) Step {
	if !state.Required && state.Sending == 0 {
		// An agent without support for tags may never confirm, but serves nevertheless.
		return confirmWithoutTimeout(state, nodes, settings, now, does)
	}
	step := Step{Next: state}
	for _, node := range nodes {
		if !does(node.Ring) {
			step.WaitingFor = append(step.WaitingFor, node.Name)
		}
	}
	slices.Sort(step.WaitingFor)
	if len(step.WaitingFor) == 0 {
		return step
	}
	step.Deadline = state.Since.Add(settings.NodeTimeout)
	if step.RequeueAfter = step.Deadline.Sub(now); step.RequeueAfter <= 0 {
		return Step{Next: state, Unconfirmed: step.WaitingFor}
	}
	return step
}

// confirmWithoutTimeout is confirm without a timeout, except for nodes that have been lost for long.
func confirmWithoutTimeout(
	state *tunnelkey.State, nodes []Node, settings Settings, now time.Time, does func(tunnelkey.Ring) bool,
) Step {
	step := Step{Next: state}
	for _, node := range nodes {
		if does(node.Ring) {
			continue
		}
		if node.LostSince.IsZero() {
			step.WaitingFor = append(step.WaitingFor, node.Name)
			continue
		}
		if wait := node.LostSince.Add(settings.NodeTimeout).Sub(now); wait > 0 {
			step.WaitingFor, step.RequeueAfter = append(step.WaitingFor, node.Name), earlierDelay(step.RequeueAfter, wait)
		} else {
			step.Unconfirmed = append(step.Unconfirmed, node.Name)
		}
	}
	slices.Sort(step.WaitingFor)
	slices.Sort(step.Unconfirmed)
	return step
}

// steady requires tags once every node sends them, and starts a rotation when it is due.
func steady(state *tunnelkey.State, nodes []Node, settings Settings, isRequested bool, now time.Time) Step {
	step := Step{Next: state}
	if !state.Required {
		step = confirmWithoutTimeout(state, nodes, settings, now, func(ring tunnelkey.Ring) bool { return ring.Sending != 0 })
		if len(step.WaitingFor) == 0 {
			step.Next = advance(state, tunnelkey.Steady, now)
			step.Next.Required, step.RequeueAfter = true, MinPhase
			return step
		}
		step.Unconfirmed = nil
	}
	age := state.Made.Add(settings.Lifetime).Sub(now)
	if isRequested || settings.Lifetime > 0 && age <= 0 {
		step = Step{Next: advance(state, tunnelkey.Publishing, now), RequeueAfter: MinPhase}
		step.Next.Accepted = append(step.Next.Accepted, tunnelkey.New(state.Newest().Generation+1))
		step.Next.Made = step.Next.Since
		return step
	}
	if settings.Lifetime > 0 {
		step.RequeueAfter = earlierDelay(step.RequeueAfter, age)
	}
	return step
}

// Lagging returns the names of the nodes that do not have the required ring, sorted.
func Lagging(state *tunnelkey.State, nodes []Node) []string {
	newest := state.Newest().Generation
	var names []string
	for _, node := range nodes {
		does := node.Ring.Sending == newest
		if state.Phase == tunnelkey.Publishing {
			does = slices.Contains(node.Ring.Accepted, newest)
		}
		if !does {
			names = append(names, node.Name)
		}
	}
	slices.Sort(names)
	return names
}

func earlierDelay(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
