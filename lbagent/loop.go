// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/detector"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/health"
	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
	"github.com/millrace-lb/millrace/lbagent/internal/history/recorder"
	"github.com/millrace-lb/millrace/lbagent/internal/inputs"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring/keeper"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
	"github.com/millrace-lb/millrace/lbagent/internal/watch"
)

// What a pass reads and writes.
type (
	reporter interface {
		Set(observation status.Observation)
	}
	hostChecks interface {
		Problems(m *model.Model, uplinks []string) []string
		OtherUplink() bool
	}
	hopWatcher interface {
		Want(targets map[forwarding.NodeID]fib.Target, devices map[int][]int)
	}
)

const (
	firstRetry   = time.Second
	longestRetry = 30 * time.Second
)

// loop brings the node to what the objects say, pass by pass. All retries are
// here: what fails in a pass is tried again by the next one, and holds up only what depends
// on it.
type loop struct {
	// inputs are what passes work by.
	inputs *inputs.Inputs
	// checkpointer keeps the objects for the next agent; nil where nothing does.
	checkpointer *checkpoint.Checkpointer
	uplinks      *uplink.Uplinks
	hops         hopWatcher
	detector     *detector.Detector
	// keys are those for packets between nodes; nil where nothing sets them.
	keys   *keeper.Keeper
	status reporter
	logger logr.Logger
	health *health.Monitor
	passes *metrics.Passes
	// published is what those who ask hear of passes.
	published *console.Published
	// host says what on the host breaks traffic of the uplinks; nil finds nothing.
	host hostChecks

	models model.Builder
	// maps are those of the data plane.
	maps *reconcile.Maps
	// targets are where packets to the other nodes go.
	targets fib.UpTargets
	// routes are announced to routers and on links.
	routes *routes.Announcer
	// watch says which nodes are down.
	watch *watch.Watch
	// canaries probes through routers; nil where nothing does.
	canaries *canary.Prober
	// healthPorts answers at healthCheckNodePorts; nil where nobody is to.
	healthPorts *healthport.Server
	// history records what passes saw; nil where nothing does.
	history *recorder.Recorder
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
		l.health.Begin(now)
		again, err := l.pass(now)
		if err != nil {
			l.logger.Error(err, "Pass failed in part; will try again", "after", retry)
			again = wake.Soonest(again, retry)
			retry = min(2*retry, longestRetry)
		} else {
			retry = firstRetry
		}
		ended := time.Now()
		l.passes.Observe(now, ended, err, metrics.Pass{
			State: l.maps.Have(), Limits: l.maps.Limits, Uplinks: l.observation.Interfaces, Held: removalguard.Count(l.observation.Held),
			Unready: l.observation.Unready.Endpoints,
		})
		l.routes.LogSessions()
		// Last: until here, whatever hangs is a pass that does.
		l.health.End(ended, err, l.routes.Speaker.Sessions())
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
	var m *model.Model
	defer func() { l.report(now, m) }()
	if err := l.maps.Dump(); err != nil {
		l.observation.ProgramError, l.observation.Forwards = err, false
		return 0, err
	}
	read := l.inputs.Read(l.watch, now)
	objects := read.Objects
	l.observation.Held, l.observation.Unready = read.Held, read.Unready
	// Before all else: what a node sends without the key, others drop.
	var keyErr error
	l.observation.TunnelKey, keyErr = l.keys.Update(objects.TunnelKey)
	objects.DynamicNeighbors = l.routes.Speaker.DynamicNeighbors()
	l.health.Move("model")
	m, changed := l.models.Build(objects)
	watchErr := l.watch.Want(m, l.keys.Keys())
	var told time.Duration
	l.observation.Watch, told = l.watch.Observe(m.Self.ID, now)
	l.observation.Nodes = len(m.Nodes)
	l.published.SetModel(m)
	l.health.Move("plan")
	step := l.maps.Plan(m, changed)
	programErr := step.Add()
	l.observation.ProgramError = programErr
	l.observation.Forwards = step.Forwards() && keyErr == nil
	if l.healthPorts != nil {
		l.healthPorts.Set(healthport.Want(m), l.observation.Forwards)
	}
	l.observation.Problems = slices.Concat(m.Problems, nameFlags(step.Unplanned), step.Unwritten(m))
	have := l.maps.Have()
	if have == nil {
		// Which routes are good is not known: they stay as they are.
		return read.Again, errors.Join(programErr, keyErr)
	}

	l.health.Move("uplinks")
	covered, attachErr := l.uplinks.Update(m, now)
	l.observation.Interfaces, l.observation.Lacking = covered.Interfaces, covered.Lacking
	names := uplink.Names(covered.Interfaces)
	l.observation.Host = l.hostProblems(m, names)
	l.hops.Want(l.targets.Of(have.Self, have.Nodes), l.uplinks.Devices())
	decided, bgpErr := l.routes.Announce(&routes.Pass{
		Model: m, Objects: objects, Change: announce.Change{Model: changed, Maps: step.Differs}, Programmed: have, Planned: step.Want,
		Unattached: covered.Unattached, Uplinks: names, Attached: l.uplinks.Attached(), Silent: l.watch.Silent(),
	}, now)
	l.observation.Decisions, l.observation.Duplicates = decided.Decisions, decided.Duplicates
	l.observation.L2, l.observation.L2Known, l.observation.Answering = decided.L2, l.routes.Layer2 != nil, decided.Answering
	l.observeSessions(m)
	l.published.SetDecisions(now, &l.observation)

	if !errors.Is(bgpErr, bgp.ErrNotWithdrawn) {
		wait, removeErr := step.Remove(now)
		programErr = errors.Join(programErr, removeErr)
		l.observation.ProgramError = programErr
		again = wake.Soonest(again, wait)
	}
	verified, verifyErr := l.maps.Verify(now)
	l.checkpointer.Keep(read.Believed, l.keys.Ring())
	again = wake.Soonest(again, verified, told, read.Again)
	return wake.Soonest(again, decided.Again, covered.Again), errors.Join(programErr, keyErr, attachErr, bgpErr, watchErr, read.NetworksErr, verifyErr)
}

// report tells what a pass saw; m is nil where it built no model.
func (l *loop) report(now time.Time, m *model.Model) {
	l.health.Move("report")
	if have := l.maps.Have(); have != nil {
		l.observation.Programmed = len(have.VIPs)
	}
	l.observation.OtherUplink = l.host != nil && l.host.OtherUplink()
	l.status.Set(l.observation)
	l.history.See(now, m, &l.observation, l.watch)
}

// hostProblems are what of this host keeps packets of its uplinks from being carried.
func (l *loop) hostProblems(m *model.Model, uplinks []string) []string {
	problems := l.routes.Layer2.Problems()
	if l.host != nil {
		problems = append(l.host.Problems(m, uplinks), problems...)
	}
	return problems
}

// observeSessions has the sessions of a pass watched and probed, and notes how they are.
func (l *loop) observeSessions(m *model.Model) {
	l.observation.Sessions = l.routes.Sessions()
	l.canaries.Observe(m, l.keys.Keys(), l.observation.Decisions, l.observation.Sessions)
	l.detector.Want(m)
	l.detector.Observe(m, l.observation.Sessions)
}
