// SPDX-License-Identifier: Apache-2.0

// Package reconcile brings the maps of the data plane to what models want, step by step: what is new
// is added first, and what waits for routers is removed last.
package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

// Plane has the maps.
type Plane interface {
	Apply(op forwarding.Op) error
	Dump() (*forwarding.State, error)
	ReadBack(state *forwarding.State, failed []forwarding.Op) error
}

// removal is an operation that takes something out of the maps.
type removal = forwarding.Op

// Config is how maps are brought to what is wanted.
type Config struct {
	Plane  Plane
	Limits forwarding.Limits
	// WithdrawDelay is how long what a withdrawn route led to keeps working.
	WithdrawDelay time.Duration
	// Take has new connections of what is in the maps be ours, and no service proxy's; nil where they
	// are anyway.
	Take func(have *forwarding.State) error
	// Explain adds to an error of the Plane what to do about it.
	Explain func(err error) error
	// Moved is called before each write: a pass that writes makes progress.
	Moved func()
	// Repaired is told how many entries another program has written to.
	Repaired func(entries int)
	Logger   logr.Logger
}

// Maps are those of a data plane, and what is known of them. All retries are the caller's: what fails
// in a pass is tried again by the next one.
type Maps struct {
	Config
	planner *plan.Planner
	// verifier has what the maps hold compared with what was written; nil where nothing does.
	verifier *verifier
	// have is what the maps hold; nil when that must be read from them. copied is true where it is
	// this one's alone: neither a plan nor read.
	have   *forwarding.State
	copied bool
	// fill is how many entries it has; nil where they are to be counted.
	fill *forwarding.Fill
	// pending is what of it waits to be removed; nil where the maps do not hold what the last pass
	// wanted beside it.
	pending *forwarding.Pending
	// due is when each removal that waits may be done. None waits on over a pass in which the
	// maps could not be read or a route not withdrawn: what it removes may be announced since.
	due map[removal]time.Time
}

// New returns maps that hold a State, for which a planner was made.
func New(have *forwarding.State, planner *plan.Planner, config Config) *Maps {
	return &Maps{Config: config, planner: planner, have: have, due: map[removal]time.Time{}}
}

// Have is what the maps hold; nil where that could not be read. It is only to be read.
func (m *Maps) Have() *forwarding.State { return m.have }

// Fill is how many entries the maps hold; nil where that could not be read. After passes that only
// move rows from node to node nothing is counted.
func (m *Maps) Fill() *forwarding.Fill {
	if m.fill == nil && m.have != nil {
		m.fill = m.have.Fill()
	}
	return m.fill
}

// Forget has the next Dump read the maps.
func (m *Maps) Forget() { m.have, m.fill = nil, nil }

// Waiting are the removals that wait, with when they may be done.
func (m *Maps) Waiting() map[forwarding.Op]time.Time { return m.due }

// Dump reads what the maps hold, where that is not known.
func (m *Maps) Dump() error {
	if m.have != nil {
		return nil
	}
	m.pending = nil
	have, err := m.Plane.Dump()
	if err != nil {
		return fmt.Errorf("read the maps: %w", err)
	}
	m.have, m.copied, m.fill = have, false, nil
	return nil
}

// Step is one pass over the maps.
type Step struct {
	// Want is what the maps shall hold, Differs the entries in which they do not; nil means any.
	Want    *forwarding.State
	Differs *forwarding.Entries
	// Unplanned is what does not fit.
	Unplanned []plan.Problem

	maps     *Maps
	schedule *forwarding.Schedule
	waiting  map[removal]time.Time
}

// Plan plans a pass for a model, of which changes have come since the last one.
func (m *Maps) Plan(of *model.Model, changes *model.Changes) *Step {
	want, differs, unplanned := m.planner.Replan(plan.Held{State: m.have, Pending: m.pending}, of, changes, m.Limits)
	step := &Step{
		Want: want, Differs: differs, Unplanned: unplanned, maps: m,
		schedule: forwarding.NewScheduleOf(m.have, want, differs), waiting: m.due,
	}
	m.due = map[removal]time.Time{}
	return step
}

// Add writes what is new or has changed, and takes new connections of it from the node's service proxy.
func (s *Step) Add() error {
	m := s.maps
	outcome := s.schedule.Add(m.apply)
	err := m.follow(s.schedule, &outcome)
	if m.Take == nil || m.have == nil {
		return err
	}
	return errors.Join(err, m.Take(m.have))
}

// Forwards reports whether the node can forward by what is in the maps.
func (s *Step) Forwards() bool { return s.maps.have != nil && s.schedule.Forwards() }

// Remove does the removals that have waited long enough, and returns after how long the next one is
// due. The routes are set already: a removal waits for the routers that may still send to what it
// removes.
func (s *Step) Remove(now time.Time) (time.Duration, error) {
	m := s.maps
	var wait time.Duration
	for _, op := range s.schedule.Removals() {
		at, found := s.waiting[op]
		if !found {
			at = now.Add(m.WithdrawDelay)
		}
		m.due[op] = at
		if left := at.Sub(now); left > 0 {
			wait = wake.Soonest(wait, left)
		}
	}
	outcome := s.schedule.Remove(m.apply, func(op forwarding.Op) bool { return !m.due[op].After(now) })
	for _, op := range outcome.Done {
		delete(m.due, op)
	}
	if len(outcome.Done) > 0 {
		// There may be room now for what did not fit.
		wait = wake.Soonest(wait, time.Millisecond)
	}
	return wait, m.follow(s.schedule, &outcome)
}

// Unwritten tells of the frontends that are not programmed as planned, since a write failed.
func (s *Step) Unwritten(of *model.Model) []model.Problem {
	keys := s.schedule.Unfinished()
	if len(keys) == 0 {
		return nil
	}
	var problems []model.Problem
	for _, frontend := range of.Frontends {
		if _, found := keys[frontend.Key]; !found {
			continue
		}
		problems = append(problems, model.Problem{
			Object: model.ObjectReference{Kind: "Service", Namespace: frontend.Service.Namespace, Name: frontend.Service.Name},
			Reason: millracev1beta1.ReasonProgramFailed,
			Message: fmt.Sprintf("frontend %s: not or not wholly programmed, a write to the maps failed; the agent tries again",
				frontend.Key),
		})
	}
	return problems
}

func (m *Maps) apply(op forwarding.Op) error {
	m.Moved()
	return m.Explain(m.Plane.Apply(op))
}

// follow notes what the maps hold after a part of a schedule. What failed is read back: the rest
// of the pass must not believe more.
func (m *Maps) follow(schedule *forwarding.Schedule, outcome *forwarding.Outcome) error {
	err := outcome.Err()
	if err != nil || slices.ContainsFunc(outcome.Done, forwarding.Fills) {
		m.fill = nil
	}
	if m.pending = nil; err == nil {
		m.pending = schedule.Pending()
	}
	if reached := schedule.Reached(); reached != nil {
		m.have, m.copied = reached, false
		return err
	}
	if err == nil && len(outcome.Done) == 0 {
		return nil
	}
	// While anything waits, passes change one copy: with thousands of frontends it takes longer than all
	// else.
	if !m.copied {
		m.have, m.copied = m.have.Clone(), true
	}
	m.have.Apply(outcome.Changed())
	if err == nil {
		return nil
	}
	if readErr := m.Plane.ReadBack(m.have, outcome.Uncertain()); readErr != nil {
		// The next pass reads all.
		m.have = nil
		return errors.Join(err, readErr)
	}
	return err
}
