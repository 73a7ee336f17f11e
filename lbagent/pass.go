// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
	"github.com/millrace-lb/millrace/lbagent/internal/inputs"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

// pass is one run of the loop: inputs, model, maps, routes, removals and the report, in this order.
type pass struct {
	*loop
	now time.Time

	read    inputs.Read
	model   *model.Model
	changes *model.Changes
	step    *reconcile.Step
	// programErr is the error of map writes, keyErr of tunnel keys, bgpErr of the speaker.
	programErr, keyErr, bgpErr error
	errs                       []error
	// again is the delay until the next requested pass; 0 means none.
	again time.Duration
}

// pass adds to the maps, then updates the routes, then removes from the maps, so that no route leads to an
// entry that is not programmed. It returns the delay until the next requested pass; 0 means none.
func (l *loop) pass(now time.Time) (again time.Duration, err error) {
	p := &pass{loop: l, now: now}
	defer p.report()
	if err := l.maps.Dump(); err != nil {
		l.observation.ProgramError, l.observation.Forwards = err, false
		return 0, err
	}
	p.readInputs()
	p.build()
	p.add()
	if l.maps.Have() == nil {
		// Without a dump the correct routes cannot be computed: they stay.
		return p.read.Again, errors.Join(p.programErr, p.keyErr)
	}
	covered := p.attach()
	p.announce(covered)
	p.followSessions()
	if !errors.Is(p.bgpErr, bgp.ErrNotWithdrawn) {
		p.remove()
	}
	verified, verifyErr := l.maps.Verify(now)
	p.wait(verified)
	l.checkpointer.Keep(p.read.Believed, l.keys.Ring())
	return p.again, errors.Join(append([]error{p.programErr, p.keyErr, p.bgpErr, verifyErr}, p.errs...)...)
}

func (p *pass) wait(again time.Duration) { p.again = wake.Soonest(p.again, again) }

// readInputs updates the keys first, because other nodes drop packets without a valid tag.
func (p *pass) readInputs() {
	p.read = p.inputs.Read(p.watch, p.now)
	p.wait(p.read.Again)
	p.errs = append(p.errs, p.read.NetworksErr)
	p.observation.Held, p.observation.Unready = p.read.Held, p.read.Unready
	p.observation.TunnelKey, p.keyErr = p.keys.Update(p.read.Objects.TunnelKey)
	p.read.Objects.DynamicNeighbors = p.routes.Speaker.DynamicNeighbors()
}

func (p *pass) build() {
	p.health.Move("model")
	p.model, p.changes = p.models.Build(p.read.Objects)
	p.errs = append(p.errs, p.watch.Want(p.model, p.keys.Keys()))
	told, again := p.watch.Observe(p.model.Self.ID, p.now)
	p.wait(again)
	p.observation.Watch, p.observation.Nodes = told, len(p.model.Nodes)
	p.published.SetModel(p.model)
	p.routes.Prepare(p.model, p.read.Objects.Passwords)
}

func (p *pass) add() {
	p.health.Move("plan")
	p.step = p.maps.Plan(p.model, p.changes)
	p.programErr = p.step.Add()
	p.observation.ProgramError = p.programErr
	p.observation.Forwards = p.step.Forwards() && p.keyErr == nil
	if p.healthPorts != nil {
		p.healthPorts.Set(healthport.Want(p.model), p.observation.Forwards)
	}
	p.observation.Problems = slices.Concat(p.model.Problems, nameFlags(p.step.Unplanned), p.step.Unwritten(p.model))
}

func (p *pass) attach() uplink.Coverage {
	p.health.Move("uplinks")
	covered, err := p.uplinks.Update(p.model, p.now)
	p.errs = append(p.errs, err)
	p.wait(covered.Again)
	p.observation.Interfaces, p.observation.Lacking = covered.Interfaces, covered.Lacking
	p.observation.Host = p.hostProblems(uplink.Names(covered.Interfaces))
	have := p.maps.Have()
	p.hops.Want(p.targets.Of(have.Self, have.Nodes), p.uplinks.Devices())
	return covered
}

func (p *pass) hostProblems(uplinks []string) []string {
	problems := p.routes.Layer2.Problems()
	if p.host != nil {
		problems = append(p.host.Problems(p.model, uplinks), problems...)
	}
	return problems
}

func (p *pass) announce(covered uplink.Coverage) {
	decided, err := p.routes.Announce(&routes.Pass{
		Model: p.model, Objects: p.read.Objects, Change: announce.Change{Model: p.changes, Maps: p.step.Differs},
		Programmed: p.maps.Have(), Planned: p.step.Want, Unattached: covered.Unattached,
		Uplinks: uplink.Names(covered.Interfaces), Attached: p.uplinks.Attached(), Silent: p.watch.Silent(),
		Held: p.watch.Held(),
	}, p.now)
	p.bgpErr = err
	p.wait(decided.Again)
	p.observation.Decisions, p.observation.Duplicates = decided.Decisions, decided.Duplicates
	p.observation.L2, p.observation.L2Known, p.observation.Answering = decided.L2, p.routes.Layer2 != nil, decided.Answering
}

func (p *pass) followSessions() {
	p.observation.Sessions = p.routes.Sessions()
	p.canaries.Observe(p.model, p.keys.Keys(), p.observation.Decisions, p.observation.Sessions)
	p.detector.Want(p.model)
	p.detector.Observe(p.model, p.observation.Sessions)
	p.published.SetDecisions(p.now, &p.observation)
}

func (p *pass) remove() {
	again, err := p.step.Remove(p.now)
	p.wait(again)
	p.programErr = errors.Join(p.programErr, err)
	p.observation.ProgramError = p.programErr
}

func (p *pass) report() {
	p.health.Move("report")
	if have := p.maps.Have(); have != nil {
		p.observation.Programmed = len(have.VIPs)
	}
	p.observation.OtherUplink = p.host != nil && p.host.OtherUplink()
	p.status.Set(p.observation)
	p.history.See(p.now, p.model, &p.observation, p.watch)
}
