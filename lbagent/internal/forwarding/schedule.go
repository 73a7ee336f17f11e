// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"errors"
	"fmt"
	"slices"
)

// Schedule executes the operations of Diff by their dependencies. A failed operation delays only dependent
// ones.
type Schedule struct {
	ops        []Op
	have, want *State
	needs      [][]int
	done       []bool
}

// NewSchedule returns the Schedule from have to want.
func NewSchedule(have, want *State) *Schedule { return NewScheduleOf(have, want, nil) }

// NewScheduleOf is NewSchedule for States that differ only in these VIPs, endpoints, tables and frontends; nil
// stands for all entries.
func NewScheduleOf(have, want *State, differs *Entries) *Schedule {
	s := &Schedule{ops: DiffOf(have, want, differs), have: have, want: want}
	s.needs = dependencies(have, want, s.ops)
	s.done = make([]bool, len(s.ops))
	return s
}

// Outcome is the result of executing a part of a Schedule.
type Outcome struct {
	Done   []Op
	Failed []Failure
	// Blocked is the number of operations not tried because of a missing dependency.
	Blocked int
	// Closed are the operations that closed a frontend, Unclosed the failed attempts.
	Closed   []Op
	Unclosed []Failure
}

// Failure is a failed operation.
type Failure struct {
	Op  Op
	Err error
}

// Changed returns the successful operations in order, including Closed.
func (o *Outcome) Changed() []Op { return slices.Concat(o.Done, o.Closed) }

// Uncertain returns the failed operations, which may have been applied in part.
func (o *Outcome) Uncertain() []Op {
	ops := make([]Op, 0, len(o.Failed)+len(o.Unclosed))
	for _, failure := range slices.Concat(o.Failed, o.Unclosed) {
		ops = append(ops, failure.Op)
	}
	return ops
}

const maxErrors = 5

// Err returns the first failures and the number of others, or nil.
func (o *Outcome) Err() error {
	if len(o.Failed) == 0 {
		return nil
	}
	var errs []error
	for _, failure := range o.Failed[:min(len(o.Failed), maxErrors)] {
		errs = append(errs, failure.Err)
	}
	if more := len(o.Failed) - len(errs); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more operations failed", more))
	}
	if len(o.Unclosed) > 0 {
		errs = append(errs, o.Unclosed[0].Err)
	}
	if o.Blocked > 0 {
		errs = append(errs, fmt.Errorf("%d operations wait for failed ones", o.Blocked))
	}
	return errors.Join(errs...)
}

// Add executes additions and changes. If the source ranges of a frontend could not be written, it shuts the
// frontend, which would otherwise admit clients that it should reject.
func (s *Schedule) Add(do func(Op) error) Outcome {
	o := s.run(do, func(op Op) bool { return !isRemoval(op) })
	if len(o.Failed) > 0 {
		s.closeFrontends(do, &o)
	}
	return o
}

// closeFrontends rewrites the existing entries of such frontends so that they admit no client. This needs no room and has
// no dependencies, and so mostly succeeds.
func (s *Schedule) closeFrontends(do func(Op) error, o *Outcome) {
	exceeding := Overpermissive(s.have, s.want)
	for i, op := range s.ops {
		put, is := op.(PutFrontend)
		if _, exceeds := exceeding[put.Key]; !is || !exceeds || s.done[i] {
			continue
		}
		entry := s.have.Frontends[put.Key]
		entry.Ranges = NoSources
		shut := PutFrontend{Key: put.Key, Frontend: entry}
		if err := do(shut); err != nil {
			o.Unclosed = append(o.Unclosed, Failure{Op: shut, Err: fmt.Errorf("close %s until its source ranges can be written: %w", put.Key, err)})
			continue
		}
		o.Closed = append(o.Closed, shut)
	}
}

// Result returns the wanted State once all operations are done, else nil.
func (s *Schedule) Result() *State {
	if slices.Contains(s.done, false) {
		return nil
	}
	return s.want
}

// Pending is the wanted State and the entries that still wait for removal.
type Pending struct {
	Wanted  *State
	Entries *Entries
}

// Pending returns the pending removals; nil if other operations are missing.
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
			// Nodes and source ranges are always compared completely.
		default:
			return nil
		}
	}
	return &Pending{Wanted: s.want, Entries: entries}
}

// Removals returns the removals in order.
func (s *Schedule) Removals() []Op {
	_, removals := Split(s.ops)
	return removals
}

// Remove executes the removals that are due.
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
			o.Blocked++
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

// Unfinished returns the frontends with missing additions or changes to them or their tables.
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

// Forwards reports whether the node can forward packets: its own entry is written, and at least one of the
// wanted other nodes and one of the wanted frontends with its tables. Further missing entries affect only their
// dependents.
func (s *Schedule) Forwards() bool {
	pending := s.pending()
	if pending[SelfEntry{}] {
		return false
	}
	someNode := len(s.want.Nodes) == 0
	for id := range s.want.Nodes {
		someNode = someNode || !pending[id]
	}
	frontends := len(s.want.Frontends)
	return someNode && (frontends == 0 || len(s.Unfinished()) < frontends)
}

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
