// SPDX-License-Identifier: Apache-2.0

// Package reconcile updates the maps of the data plane to the desired state in steps: additions first,
// and removals that wait for routers last.
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
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

// Plane reads and writes the maps.
type Plane interface {
	Apply(op forwarding.Op) error
	Dump() (*forwarding.State, error)
	ReadBack(state *forwarding.State, failed []forwarding.Op) error
}

type removal = forwarding.Op

// Config configures Maps.
type Config struct {
	Plane  Plane
	Limits forwarding.Limits
	// WithdrawDelay is the minimum time between the withdrawal of a route and the removal of its entries.
	WithdrawDelay time.Duration
	// MigrateFrontends takes over new connections to the entries in the maps from the service proxy; nil if that is
	// not necessary.
	MigrateFrontends func(have *forwarding.State) error
	Explain          func(err error) error
	OnStep           func()
	// Repaired is called with the number of entries that another program has modified.
	Repaired func(entries int)
	Logger   logr.Logger
}

// Maps are the maps of a data plane with their known content. The caller retries: an operation that fails
// is attempted again by the next pass.
type Maps struct {
	Config
	planner *plan.Planner
	// verifier compares the maps with the written content; nil disables it.
	verifier *verifier
	// have is the content of the maps; nil if it must be read. copied is true if no plan or reader shares
	// it.
	have   *forwarding.State
	copied bool
	// usage is the number of entries in have; nil if they must be counted.
	usage *forwarding.Usage
	// pending is the part of have that waits for removal; nil if the maps differ from the last desired
	// state otherwise.
	pending *forwarding.Pending
	// due is the earliest time of each removal. It is reset by a pass that cannot read maps or withdraw
	// routes, because the entry may be announced since.
	due map[removal]time.Time
}

// New returns maps with a known content, for which the planner was created.
func New(have *forwarding.State, planner *plan.Planner, config Config) *Maps {
	return &Maps{Config: config, planner: planner, have: have, due: map[removal]time.Time{}}
}

// Have returns the content of the maps, or nil if it could not be read. It must not be modified.
func (m *Maps) Have() *forwarding.State { return m.have }

// Usage returns the number of entries in the maps, or nil if they could not be read. Passes that only move
// rows between nodes do not count entries.
func (m *Maps) Usage() *forwarding.Usage {
	if m.usage == nil && m.have != nil {
		m.usage = m.have.Usage()
	}
	return m.usage
}

// Invalidate makes the next Dump read the maps.
func (m *Maps) Invalidate() { m.have, m.usage = nil, nil }

// Waiting returns the waiting removals with the time at which they are permitted.
func (m *Maps) Waiting() map[forwarding.Op]time.Time { return m.due }

// Dump reads the content of the maps, unless it is known.
func (m *Maps) Dump() error {
	if m.have != nil {
		return nil
	}
	m.pending = nil
	have, err := m.Plane.Dump()
	if err != nil {
		return fmt.Errorf("read the maps: %w", err)
	}
	m.have, m.copied, m.usage = have, false, nil
	return nil
}

// Step is one pass over the maps.
type Step struct {
	Want      *forwarding.State
	Differs   *forwarding.Entries
	Unplanned []plan.Problem

	maps     *Maps
	schedule *forwarding.Schedule
	waiting  map[removal]time.Time
}

// Plan plans a pass for a model, with the changes since the previous pass.
func (m *Maps) Plan(of *model.Model, changes *model.Changes) *Step {
	want, differs, unplanned := m.planner.Replan(plan.MapContent{State: m.have, Pending: m.pending}, of, changes, m.Limits)
	step := &Step{
		Want: want, Differs: differs, Unplanned: unplanned, maps: m,
		schedule: forwarding.NewScheduleOf(m.have, want, differs), waiting: m.due,
	}
	m.due = map[removal]time.Time{}
	return step
}

// Add writes new and changed entries, and takes over new connections to them from the node's service
// proxy.
func (s *Step) Add() error {
	m := s.maps
	outcome := s.schedule.Add(m.apply)
	err := m.recordOutcome(s.schedule, &outcome)
	if m.MigrateFrontends == nil || m.have == nil {
		return err
	}
	return errors.Join(err, m.MigrateFrontends(m.have))
}

// Forwards reports whether the node can forward by the content of the maps.
func (s *Step) Forwards() bool { return s.maps.have != nil && s.schedule.Forwards() }

// Remove executes the removals that have waited long enough, and returns the delay until the next one. It
// must be called after routes are set: a removal waits for routers that may still send to its entry.
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
			wait = notify.Soonest(wait, left)
		}
	}
	outcome := s.schedule.Remove(m.apply, func(op forwarding.Op) bool { return !m.due[op].After(now) })
	for _, op := range outcome.Done {
		delete(m.due, op)
	}
	if len(outcome.Done) > 0 {
		// There may be room now for unplanned objects.
		wait = notify.Soonest(wait, time.Millisecond)
	}
	return wait, m.recordOutcome(s.schedule, &outcome)
}

// Unwritten returns problems of frontends that are not programmed because a write failed.
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
			Reason: millracev1beta1.ReasonProgrammingFailed,
			Message: fmt.Sprintf("frontend %s: not or only partly programmed, a write to the maps failed; the agent retries",
				frontend.Key),
		})
	}
	return problems
}

func (m *Maps) apply(op forwarding.Op) error {
	m.OnStep()
	return m.Explain(m.Plane.Apply(op))
}

// recordOutcome updates the known content after a part of a schedule. Failed entries are read back, because the
// rest of the pass depends on them.
func (m *Maps) recordOutcome(schedule *forwarding.Schedule, outcome *forwarding.Outcome) error {
	err := outcome.Err()
	if err != nil || slices.ContainsFunc(outcome.Done, forwarding.ChangesUsage) {
		m.usage = nil
	}
	if m.pending = nil; err == nil {
		m.pending = schedule.Pending()
	}
	if reached := schedule.Result(); reached != nil {
		m.have, m.copied = reached, false
		return err
	}
	if err == nil && len(outcome.Done) == 0 {
		return nil
	}
	// While removals wait, passes modify one copy: with thousands of frontends, cloning dominates the
	// time of a pass.
	if !m.copied {
		m.have, m.copied = m.have.Clone(), true
	}
	m.have.Apply(outcome.Changed())
	if err == nil {
		return nil
	}
	if readErr := m.Plane.ReadBack(m.have, outcome.Uncertain()); readErr != nil {
		// The next pass reads everything.
		m.have = nil
		return errors.Join(err, readErr)
	}
	return err
}
