// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/nexthop"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

// What a pass reads and writes.
type (
	dataPlane interface {
		Apply(ops []program.Op) error
		Dump() (*program.State, error)
		Attach(uplinks []dataplane.Uplink) error
		Attachments() []dataplane.Attachment
	}
	speaker interface {
		Set(want bgp.Want) error
		Sessions() []bgp.Session
	}
	reporter interface {
		Set(observation status.Observation)
	}
	hopWatcher interface {
		Want(targets map[program.NodeID]nexthop.Target, devices map[int]struct{})
	}
	uplinkFinder func(addresses []netip.Addr, now time.Time) ([]netdev.Link, time.Duration, error)
)

// removal is an operation that takes something out of the maps.
type removal = program.Op

const (
	firstRetry   = time.Second
	longestRetry = 30 * time.Second
)

// loop brings the node to what the objects say, pass by pass. All retries are
// here: whatever fails in a pass is done again by the next one.
type loop struct {
	limits        program.Limits
	withdrawDelay time.Duration

	objects   func() *model.Snapshot
	uplinks   uplinkFinder
	dataplane dataPlane
	hops      hopWatcher
	speaker   speaker
	status    reporter
	logger    logr.Logger
	health    *health
	names     *directory

	planner *plan.Planner
	// have is what the maps hold; nil when that must be read from them.
	have *program.State
	// due is when each removal that waits may be done. None waits on over a pass that fails:
	// what it removes may be announced or used again since.
	due map[removal]time.Time
	// attached are the uplinks that the programs were last attached to;
	// attachFailed is true when that must be done again.
	attached     []netdev.Link
	attachFailed bool
	established  map[string]bool
	// observation is what the last pass saw.
	observation status.Observation
}

// run makes a pass at once, whenever one of the channels has a value, and
// when a pass asked for another.
func (l *loop) run(ctx context.Context, objects, links, sessions <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := firstRetry
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-objects:
		case <-links:
		case <-sessions:
		case <-timer.C:
		}
		now := time.Now()
		l.health.begin(now)
		again, err := l.pass(now)
		if err != nil {
			l.logger.Error(err, "Pass failed in part; will try again", "after", retry)
			again = soonest(again, retry)
			retry = min(2*retry, longestRetry)
		} else {
			retry = firstRetry
		}
		l.health.end(time.Now(), err, l.speaker.Sessions())
		l.logSessions()
		timer.Stop()
		if again > 0 {
			timer.Reset(again)
		}
	}
}

// pass does everything that can be done now, in the order that keeps a route
// from leading to what is not, or no longer, programmed: first what is added
// to the maps, then the routes, last what is removed. It returns after how
// long another pass is due; 0 means none is.
func (l *loop) pass(now time.Time) (again time.Duration, err error) {
	defer func() { l.status.Set(l.observation) }()
	if l.have == nil {
		if err := l.dump(); err != nil {
			l.observation.ProgramError = err
			return 0, err
		}
	}
	m := model.Build(l.objects())
	l.names.set(m)
	want, unplanned := l.planner.Plan(l.have, m, l.limits)
	additions, removals := program.Split(program.Diff(l.have, want))
	l.observation.Problems = slices.Concat(m.Problems, unplanned)
	waiting := l.due
	l.due = map[removal]time.Time{}
	programErr := l.apply(additions)
	l.observation.ProgramError = programErr
	if l.have == nil {
		// Which routes are good is not known: they stay as they are.
		return 0, programErr
	}

	again, attachErr := l.attach(m.Self, now)
	attachments := l.dataplane.Attachments()
	l.observation.Interfaces = interfaces(attachments)
	l.hops.Want(nexthop.Targets(l.have.Self, l.have.Nodes), devices(attachments))
	routes, decisions := announce.Decide(m, l.have, attachedEverywhere(attachments))
	l.observation.Decisions = decisions
	bgpErr := l.speaker.Set(wantBGP(m, routes))
	l.observation.Sessions = sessions(l.speaker.Sessions())

	if programErr == nil && !errors.Is(bgpErr, bgp.ErrNotWithdrawn) {
		var wait time.Duration
		wait, programErr = l.remove(removals, waiting, now)
		l.observation.ProgramError = programErr
		again = soonest(again, wait)
	}
	return again, errors.Join(programErr, attachErr, bgpErr)
}

// dump reads what the maps hold.
func (l *loop) dump() error {
	have, err := l.dataplane.Dump()
	if err != nil {
		l.have = nil
		return fmt.Errorf("read the maps: %w", err)
	}
	l.have = have
	return nil
}

// apply changes the maps. When that fails half way, what they hold now is read
// from them: the rest of the pass must not believe more.
func (l *loop) apply(ops []program.Op) error {
	if len(ops) == 0 {
		return nil
	}
	if err := l.dataplane.Apply(ops); err != nil {
		return errors.Join(err, l.dump())
	}
	l.have = program.Apply(l.have, ops)
	return nil
}

// remove does the removals that have waited long enough, given when those are due that
// wait already, and returns after how long the next one is due. The routes are set
// already: a removal waits for the routers that may still send to what it removes.
func (l *loop) remove(removals []removal, waiting map[removal]time.Time, now time.Time) (time.Duration, error) {
	var ready []program.Op
	var wait time.Duration
	for _, op := range removals {
		at, found := waiting[op]
		if !found {
			at = now.Add(l.withdrawDelay)
		}
		l.due[op] = at
		if left := at.Sub(now); left > 0 {
			wait = soonest(wait, left)
			continue
		}
		ready = append(ready, op)
	}
	if err := l.apply(ready); err != nil {
		return wait, err
	}
	if len(ready) > 0 {
		// There may be room now for what did not fit.
		wait = soonest(wait, time.Millisecond)
	}
	for _, op := range ready {
		delete(l.due, op)
	}
	return wait, nil
}

// attach attaches the programs to the uplinks where something changed.
func (l *loop) attach(self program.Self, now time.Time) (again time.Duration, err error) {
	uplinks, again, err := l.uplinks([]netip.Addr{self.IPv4, self.IPv6}, now)
	if err != nil {
		// The programs stay where they are.
		return 0, err
	}
	if !l.attachFailed && l.attached != nil && slices.EqualFunc(l.attached, uplinks, sameDevice) {
		return again, nil
	}
	wanted := make([]dataplane.Uplink, 0, len(uplinks))
	for _, link := range uplinks {
		wanted = append(wanted, dataplane.Uplink{Name: link.Name, Index: link.Index, Device: link.Device, Members: link.Members})
	}
	err = l.dataplane.Attach(wanted)
	l.attachFailed = err != nil
	l.attached = append([]netdev.Link{}, uplinks...)
	l.logger.Info("Uplinks", "interfaces", describeAttachments(l.dataplane.Attachments()))
	return again, err
}

func sameDevice(a, b netdev.Link) bool {
	return a.Name == b.Name && a.Index == b.Index && a.MAC == b.MAC &&
		a.Device == b.Device && slices.Equal(a.Members, b.Members)
}

// logSessions tells sessions that were established or lost since last time.
func (l *loop) logSessions() {
	established := map[string]bool{}
	for _, session := range l.speaker.Sessions() {
		up := isEstablished(session)
		established[session.Peer] = up
		if up && !l.established[session.Peer] {
			l.logger.Info("BGP session established", "peer", session.Peer, "address", session.Address, "routes", session.Routes)
		}
		if !up && l.established[session.Peer] {
			l.logger.Info("BGP session lost", "peer", session.Peer, "address", session.Address, "reason", session.Message)
		}
	}
	l.established = established
}

// soonest returns the shorter of two waits, of which 0 means none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
