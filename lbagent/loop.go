// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/detector"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/duplicate"
	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/health"
	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
	"github.com/millrace-lb/millrace/lbagent/internal/history/recorder"
	"github.com/millrace-lb/millrace/lbagent/internal/inputs"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring/keeper"
	"github.com/millrace-lb/millrace/lbagent/internal/l2"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
	"github.com/millrace-lb/millrace/lbagent/internal/watch"
)

// What a pass reads and writes.
type (
	speaker interface {
		Set(want bgp.Want) error
		Sessions() []bgp.Session
		Routes() announce.Routes
		Announced() *announce.Prefixes
		DynamicNeighbors() []netip.Addr
		Refused() bgp.Refused
	}
	reporter interface {
		Set(observation status.Observation)
	}
	hostChecks interface {
		Problems(m *model.Model, uplinks []string) []string
		OtherUplink() bool
	}
	handover interface {
		See(shutsDown bool)
		HasBegun() bool
		Withdrawn()
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
	// drainDelay is how long a departing node announces its routes as those to be left.
	drainDelay time.Duration
	departure  announce.Departure
	handover   handover
	// unreadyDelay is how long a Cluster VIP stays announced without an endpoint.
	unreadyDelay time.Duration
	unready      announce.Unready
	decider      announce.Decider

	// inputs are what passes work by.
	inputs *inputs.Inputs
	// checkpointer keeps the objects for the next agent; nil where nothing does.
	checkpointer *checkpoint.Checkpointer
	uplinks      *uplink.Uplinks
	hops         hopWatcher
	speaker      speaker
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
	// announced are the VIPs that the last pass announced or, after a start, those that the
	// agent before may have announced.
	announced map[netip.Addr]bool
	// told are the prefixes that the speaker announced when announced was found out.
	told        *announce.Prefixes
	established map[string]bool
	// watch says which nodes are down.
	watch *watch.Watch
	// canaries probes through routers; nil where nothing does.
	canaries *canary.Prober
	// duplicates finds hosts that have the address of a VIP; nil where nobody is asked.
	duplicates *duplicate.Detector
	// layer2 answers for VIPs on links; nil where nobody does.
	layer2 *l2.Answerer
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
		l.logSessions()
		// Last: until here, whatever hangs is a pass that does.
		l.health.End(ended, err, l.speaker.Sessions())
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
	objects.DynamicNeighbors = l.speaker.DynamicNeighbors()
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
	l.observation.Host = l.hostProblems(m, uplink.Names(covered.Interfaces))
	l.hops.Want(l.targets.Of(have.Self, have.Nodes), l.uplinks.Devices())
	changes, bgpErr := l.setRoutes(m, announce.Change{Model: changed, Maps: step.Differs}, announce.Node{
		Programmed: have, Planned: step.Want, Unattached: covered.Unattached, Announced: l.announced,
	}, objects, now)
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
	return wake.Soonest(again, changes, covered.Again), errors.Join(programErr, keyErr, attachErr, bgpErr, watchErr, read.NetworksErr, verifyErr)
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
	problems := l.layer2.Problems()
	if l.host != nil {
		problems = append(l.host.Problems(m, uplinks), problems...)
	}
	return problems
}

// setRoutes gives the speaker the routes of a node, and returns after how long there may be
// others.
func (l *loop) setRoutes(
	m *model.Model, change announce.Change, node announce.Node, objects *model.Snapshot, now time.Time,
) (again time.Duration, err error) {
	l.health.Move("routes")
	var departs, unready, checked time.Duration
	l.handover.See(m.Departing == millracev1alpha1.DepartureShuttingDown)
	node.Final = l.handover.HasBegun()
	node.Phase, departs = l.departure.Advance(m.Departing != "" || node.Final, l.drainDelay, now)
	node.Unready, unready = l.unready.Advance(m, change.Model, l.announced, l.unreadyDelay, now)
	uplinks := uplink.Names(l.observation.Interfaces)
	node.Silent = l.watch.Silent()
	l.layer2.Look(m, objects, l.uplinks.Attached(), &node)
	l.duplicates.Leave(l.layer2.Elsewhere())
	node.Duplicates, l.observation.Duplicates, checked = l.duplicates.Judge(m, objects, uplinks, l.announced, now)
	routes, decisions := l.decider.Decide(m, change, &node)
	same := delta.IsSame(decisions, l.observation.Decisions)
	l.observation.Decisions = decisions
	l.layer2.Answer(m, decisions, node.Silent)
	l.observation.L2, l.observation.L2Known, l.observation.Answering = l.layer2.Reach(), l.layer2 != nil, l.layer2.Answers()
	l.health.Move("BGP")
	err = l.speaker.Set(wantBGP(m, routes, objects.Passwords))
	if node.Final && node.Phase == announce.Left && err == nil {
		l.handover.Withdrawn()
	}
	if told := l.speaker.Announced(); err != nil {
		l.announced, l.told = announced(l.announced, decisions, told, err), nil
	} else if told != l.told || !same {
		l.announced, l.told = announced(l.announced, decisions, told, nil), told
	}
	return wake.Soonest(departs, unready, checked), err
}

// observeSessions has the sessions of a pass watched and probed, and notes how they are.
func (l *loop) observeSessions(m *model.Model) {
	l.observation.Sessions = sessions(l.speaker.Sessions())
	l.canaries.Observe(m, l.keys.Keys(), l.observation.Decisions, l.observation.Sessions)
	l.detector.Want(m)
	l.detector.Observe(m, l.observation.Sessions)
}

// logSessions tells sessions that were established or lost since last time.
func (l *loop) logSessions() {
	established := map[string]bool{}
	for _, session := range l.speaker.Sessions() {
		up := session.IsEstablished()
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
