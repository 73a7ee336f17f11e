// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"fmt"
	"time"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

// dump reads what the maps hold.
func (l *loop) dump() error {
	l.pending = nil
	have, err := l.dataplane.Dump()
	if err != nil {
		l.have = nil
		return fmt.Errorf("read the maps: %w", err)
	}
	l.have, l.copied = have, false
	return nil
}

// follow notes what the maps hold after a part of a schedule. What failed is read back: the rest
// of the pass must not believe more.
func (l *loop) follow(schedule *forwarding.Schedule, outcome *forwarding.Outcome) error {
	err := outcome.Err()
	if l.pending = nil; err == nil {
		l.pending = schedule.Pending()
	}
	if reached := schedule.Reached(); reached != nil {
		l.have, l.copied = reached, false
		return err
	}
	if err == nil && len(outcome.Done) == 0 {
		return nil
	}
	// While anything waits, passes change one copy: with thousands of frontends it takes longer than all
	// else.
	if !l.copied {
		l.have, l.copied = l.have.Clone(), true
	}
	l.have.Apply(outcome.Changed())
	if err == nil {
		return nil
	}
	if readErr := l.dataplane.ReadBack(l.have, outcome.Uncertain()); readErr != nil {
		// The next pass reads all.
		l.have = nil
		return errors.Join(err, readErr)
	}
	return err
}

func (l *loop) apply(op forwarding.Op) error {
	l.health.Move("maps")
	return nameFlag(l.dataplane.Apply(op))
}

// add writes what is new or has changed, and takes new connections of it from the node's service proxy.
func (l *loop) add(schedule *forwarding.Schedule) error {
	outcome := schedule.Add(l.apply)
	err := l.follow(schedule, &outcome)
	if l.take == nil || l.have == nil {
		return err
	}
	return errors.Join(err, l.take(l.have))
}

// remove does the removals that have waited long enough, given when those are due that
// wait already, and returns after how long the next one is due. The routes are set
// already: a removal waits for the routers that may still send to what it removes.
func (l *loop) remove(schedule *forwarding.Schedule, waiting map[removal]time.Time, now time.Time) (time.Duration, error) {
	var wait time.Duration
	for _, op := range schedule.Removals() {
		at, found := waiting[op]
		if !found {
			at = now.Add(l.withdrawDelay)
		}
		l.due[op] = at
		if left := at.Sub(now); left > 0 {
			wait = wake.Soonest(wait, left)
		}
	}
	outcome := schedule.Remove(l.apply, func(op forwarding.Op) bool { return !l.due[op].After(now) })
	for _, op := range outcome.Done {
		delete(l.due, op)
	}
	if len(outcome.Done) > 0 {
		// There may be room now for what did not fit.
		wait = wake.Soonest(wait, time.Millisecond)
	}
	return wait, l.follow(schedule, &outcome)
}

// unwritten tells of the frontends that are not programmed as planned, since a write failed.
func unwritten(m *model.Model, keys map[forwarding.FrontendKey]struct{}) []model.Problem {
	if len(keys) == 0 {
		return nil
	}
	var problems []model.Problem
	for _, frontend := range m.Frontends {
		if _, found := keys[frontend.Key]; !found {
			continue
		}
		problems = append(problems, model.Problem{
			Object: model.ObjectReference{Kind: "Service", Namespace: frontend.Service.Namespace, Name: frontend.Service.Name},
			Reason: millracev1alpha1.ReasonProgramFailed,
			Message: fmt.Sprintf("frontend %s: not or not wholly programmed, a write to the maps failed; the agent tries again",
				frontend.Key),
		})
	}
	return problems
}
