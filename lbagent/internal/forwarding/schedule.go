// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"errors"
	"fmt"
	"slices"
)

// Schedule is what leads from one State to another: the operations of Diff, each with
// those before it that it depends on. An operation that fails holds up only what depends
// on it; the rest is done all the same.
type Schedule struct {
	ops        []Op
	have, want *State
	// needs are the operations, by their place, that must be done before one is.
	needs [][]int
	done  []bool
}

// NewSchedule returns the Schedule from have to want, of which nothing is done.
func NewSchedule(have, want *State) *Schedule { return NewScheduleOf(have, want, nil) }

// NewScheduleOf is NewSchedule where the States differ in no VIP, endpoint, table or frontend but
// those of the entries; nil stands for all.
func NewScheduleOf(have, want *State, differs *Entries) *Schedule {
	s := &Schedule{ops: DiffOf(have, want, differs), have: have, want: want}
	s.needs = dependencies(have, want, s.ops)
	s.done = make([]bool, len(s.ops))
	return s
}

// Outcome is what became of a part of a Schedule.
type Outcome struct {
	// Done are the operations that succeeded, in their order.
	Done []Op
	// Failed are those that were tried and failed, with the error of each.
	Failed []Failure
	// Held is how many were not tried, since they depend on one that is not done.
	Held int
	// Shut are the operations that shut a frontend, Open those that could not even do that.
	Shut []Op
	Open []Failure
}

// Failure is an operation that failed.
type Failure struct {
	Op  Op
	Err error
}

// Changed are the operations that succeeded, in their order, with those that shut a frontend.
func (o *Outcome) Changed() []Op { return slices.Concat(o.Done, o.Shut) }

// Uncertain are the operations that failed: the maps may hold a part of each.
func (o *Outcome) Uncertain() []Op {
	ops := make([]Op, 0, len(o.Failed)+len(o.Open))
	for _, failure := range slices.Concat(o.Failed, o.Open) {
		ops = append(ops, failure.Op)
	}
	return ops
}

// maxTold is how many failures an error tells one by one.
const maxTold = 5

// Err is nil where no operation failed. It tells the first failures, and counts the others
// and what waits for them.
func (o *Outcome) Err() error {
	if len(o.Failed) == 0 {
		return nil
	}
	var errs []error
	for _, failure := range o.Failed[:min(len(o.Failed), maxTold)] {
		errs = append(errs, failure.Err)
	}
	if more := len(o.Failed) - len(errs); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more operations failed", more))
	}
	if len(o.Open) > 0 {
		errs = append(errs, o.Open[0].Err)
	}
	if o.Held > 0 {
		errs = append(errs, fmt.Errorf("%d operations wait for what failed", o.Held))
	}
	return errors.Join(errs...)
}

// Add does what adds or changes. A frontend that would go on admitting clients whom it is to
// admit no more, since what restricts it is not done, is shut.
func (s *Schedule) Add(do func(Op) error) Outcome {
	o := s.run(do, func(op Op) bool { return !isRemoval(op) })
	if len(o.Failed) > 0 {
		s.shut(do, &o)
	}
	return o
}

// shut writes the entries that frontends have, admitting nobody. That needs no room and depends
// on nothing, so it mostly succeeds where what is wanted fails.
func (s *Schedule) shut(do func(Op) error, o *Outcome) {
	exceeding := Exceeding(s.have, s.want)
	for i, op := range s.ops {
		put, is := op.(PutFrontend)
		if _, exceeds := exceeding[put.Key]; !is || !exceeds || s.done[i] {
			continue
		}
		entry := s.have.Frontends[put.Key]
		entry.Ranges = Nobody
		shut := PutFrontend{Key: put.Key, Frontend: entry}
		if err := do(shut); err != nil {
			o.Open = append(o.Open, Failure{Op: shut, Err: fmt.Errorf("shut %s until its source ranges can be written: %w", put.Key, err)})
			continue
		}
		o.Shut = append(o.Shut, shut)
	}
}

// Reached returns the State that was wanted once all is done, else nil.
func (s *Schedule) Reached() *State {
	if slices.Contains(s.done, false) {
		return nil
	}
	return s.want
}

// Pending is what the maps hold beside what was wanted, since it waits to be removed.
type Pending struct {
	// Wanted is the State that is reached once it is removed.
	Wanted *State
	// Entries are those that wait.
	Entries *Entries
}

// Pending returns what waits to be removed; nil where something else is not done.
func (s *Schedule) Pending() *Pending {
	entries := &Entries{}
	for i, op := range s.ops {
		if s.done[i] {
			continue
		}
		switch op := op.(type) {
		case DeleteVIP:
			entries.VIPs = append(entries.VIPs, op.Address)
		case DeleteFrontend:
			entries.Frontends = append(entries.Frontends, op.Key)
		case ClearTable:
			entries.NodeTables = append(entries.NodeTables, op.Slot)
		case ClearEndpointTable:
			entries.EndpointTables = append(entries.EndpointTables, op.Slot)
		case DeleteEndpoint:
			entries.Endpoints = append(entries.Endpoints, op.ID)
		case DeleteNode, DeleteSourceRange:
			// States are compared in all of these.
		default:
			return nil
		}
	}
	return &Pending{Wanted: s.want, Entries: entries}
}

// Removals are the operations that remove, in their order.
func (s *Schedule) Removals() []Op {
	_, removals := Split(s.ops)
	return removals
}

// Remove does those removals that are due.
func (s *Schedule) Remove(do func(Op) error, due func(Op) bool) Outcome {
	return s.run(do, func(op Op) bool { return isRemoval(op) && due(op) })
}

func (s *Schedule) run(do func(Op) error, chosen func(Op) bool) Outcome {
	var o Outcome
	for i, op := range s.ops {
		if s.done[i] || !chosen(op) {
			continue
		}
		if !s.ready(i) {
			o.Held++
			continue
		}
		if err := do(op); err != nil {
			o.Failed = append(o.Failed, Failure{Op: op, Err: err})
			continue
		}
		s.done[i] = true
		o.Done = append(o.Done, op)
	}
	return o
}

// Unfinished returns the frontends that are not written as wanted, or not their tables,
// since something was not done that adds or changes.
func (s *Schedule) Unfinished() map[FrontendKey]struct{} {
	pending := s.pending()
	keys := map[FrontendKey]struct{}{}
	if len(pending) == 0 {
		return keys
	}
	for key := range s.want.Frontends {
		unfinished := pending[key]
		for _, thing := range referredTo(s.want, key) {
			unfinished = unfinished || pending[thing]
		}
		if unfinished {
			keys[key] = struct{}{}
		}
	}
	return keys
}

// Forwards reports whether the node can forward packets by what is done. Its own entry must
// be written, at least one other node, and at least one frontend with its tables. Nodes or
// frontends are not waited for where none are wanted. Single ones that are not written cost
// only what depends on them.
func (s *Schedule) Forwards() bool {
	pending := s.pending()
	if pending[Own{}] {
		return false
	}
	someNode := len(s.want.Nodes) == 0
	for id := range s.want.Nodes {
		someNode = someNode || !pending[id]
	}
	frontends := len(s.want.Frontends)
	return someNode && (frontends == 0 || len(s.Unfinished()) < frontends)
}

// pending are the things that are not written as wanted.
func (s *Schedule) pending() map[any]bool {
	pending := map[any]bool{}
	for i, op := range s.ops {
		if !s.done[i] && !isRemoval(op) {
			pending[Written(op)] = true
		}
	}
	return pending
}

func (s *Schedule) ready(i int) bool {
	for _, needed := range s.needs[i] {
		if !s.done[needed] {
			return false
		}
	}
	return true
}
