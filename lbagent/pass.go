// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
	"github.com/millrace-lb/millrace/lbagent/internal/snapshot"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
)

// pass is one run of the loop: inputs, model, maps, routes, removals and the report, in this order.
type pass struct {
	*loop
	now time.Time

	input   snapshot.Input
	model   *model.Model
	changes *model.Changes
	step    *reconcile.Step
	// programErr is the error of map writes, keyErr of tunnel keys, bgpErr of the speaker.
	programErr, keyErr, bgpErr error
	errs                       []error
	// requeueAfter is the delay until the next requested pass; 0 means none.
	requeueAfter time.Duration
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
		return p.input.RequeueAfter, errors.Join(p.programErr, p.keyErr)
	}
	covered := p.attach()
	p.announce(covered)
	p.updateSessions()
	p.remove()
	verified, verifyErr := l.maps.Verify(now)
	p.requeue(verified)
	l.checkpointer.Update(p.input.Checkpoint, l.keys.Ring())
	return p.requeueAfter, errors.Join(append([]error{p.programErr, p.keyErr, p.bgpErr, verifyErr}, p.errs...)...)
}

func (p *pass) requeue(again time.Duration) { p.requeueAfter = notify.Soonest(p.requeueAfter, again) }

// readInputs updates the keys first, because other nodes drop packets without a valid tag.
func (p *pass) readInputs() {
	p.input = p.assembler.Assemble(p.nodeHealth, p.now)
	p.requeue(p.input.RequeueAfter)
	p.errs = append(p.errs, p.input.NetworksErr)
	p.observation.Held, p.observation.Unready = p.input.Held, p.input.Unready
	p.observation.TunnelKey, p.keyErr = p.keys.Update(p.input.Objects.TunnelKey)
	p.input.Objects.DynamicNeighbors = p.routes.Speaker.DynamicNeighbors()
	p.input.Objects.Routers = p.discovery.Routers(model.RouterInterfaces(p.input.Objects))
}

func (p *pass) build() {
	p.health.SetStep("model")
	p.model, p.changes = p.models.Build(p.input.Objects)
	p.errs = append(p.errs, p.nodeHealth.SetTargets(p.model, p.keys.Keys()))
	health, again := p.nodeHealth.Observe(p.model.Self.ID, p.now)
	p.requeue(again)
	p.observation.NodeHealth, p.observation.Nodes = health, len(p.model.Nodes)
	p.published.SetModel(p.model)
}

func (p *pass) add() {
	p.health.SetStep("plan")
	p.step = p.maps.Plan(p.model, p.changes)
	p.programErr = p.step.Add()
	p.observation.ProgramError = p.programErr
	p.observation.Forwards = p.step.Forwards() && p.keyErr == nil
	if p.healthPorts != nil {
		p.healthPorts.Set(healthport.Checks(p.model), p.observation.Forwards)
	}
	p.observation.Problems = slices.Concat(p.model.Problems, nameFlags(p.step.Unplanned), p.step.Unwritten(p.model))
}

func (p *pass) attach() uplink.Coverage {
	p.health.SetStep("uplinks")
	covered, err := p.uplinks.Update(p.model, p.now)
	p.errs = append(p.errs, err)
	p.requeue(covered.RequeueAfter)
	p.observation.Interfaces, p.observation.MissingPrograms = covered.Interfaces, covered.MissingPrograms
	p.observation.Host = p.hostProblems(uplink.Names(covered.Interfaces))
	have := p.maps.Have()
	p.hops.SetTargets(p.targets.Of(have.Self, have.Nodes), p.uplinks.Devices())
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
		Model: p.model, Objects: p.input.Objects, Change: announce.Change{Model: p.changes, Maps: p.step.Differs},
		Programmed: p.maps.Have(), Planned: p.step.Want, Unattached: covered.Unattached,
		Uplinks: uplink.Names(covered.Interfaces), Attached: p.uplinks.Attached(), Silent: p.nodeHealth.Silent(),
		Held: p.nodeHealth.Held(),
	}, p.now)
	p.bgpErr = err
	p.requeue(decided.RequeueAfter)
	p.observation.Decisions, p.observation.Duplicates = decided.Decisions, decided.Duplicates
	p.observation.L2, p.observation.L2Known, p.observation.Answering = decided.L2, p.routes.Layer2 != nil, decided.Answering
}

func (p *pass) updateSessions() {
	p.observation.Sessions = p.routes.Sessions(p.model)
	p.canaries.Observe(p.model, p.keys.Keys(), p.observation.Decisions, p.observation.Sessions)
	p.detector.SetPeers(p.model)
	p.detector.Observe(p.model, p.observation.Sessions)
	p.published.SetDecisions(p.now, &p.observation)
}

func (p *pass) remove() {
	again, err := p.step.Remove(p.now)
	p.requeue(again)
	p.programErr = errors.Join(p.programErr, err)
	p.observation.ProgramError = p.programErr
}

func (p *pass) report() {
	p.health.SetStep("report")
	if have := p.maps.Have(); have != nil {
		p.observation.Programmed = len(have.VIPs)
	}
	p.observation.UnexpectedUplink = p.host != nil && p.host.UnexpectedUplink()
	p.status.Set(p.observation)
	p.history.Observe(p.now, p.model, &p.observation, p.nodeHealth)
}
