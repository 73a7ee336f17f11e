// SPDX-License-Identifier: Apache-2.0

// Package nodehealth provides passes and reports with the state of other nodes: which are down according to
// probes, and which have been down long enough to be reported.
package nodehealth

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/unprogrammed"
)

const (
	// ReportAfter is the default time that a node is down before it is reported. A cut-off node sets its
	// own condition after a sixth of that time.
	ReportAfter = 30 * time.Second
	// ReportSpread spreads the reports of all nodes, so that a dead node does not cause a thousand writes
	// at once.
	ReportSpread = 30 * time.Second
)

// Prober probes the other nodes.
type Prober interface {
	SetTargets(want probe.Want)
	Verdict() membership.Verdict
	Known() []membership.Known
}

type noopProber struct{}

func (noopProber) SetTargets(probe.Want)       {}
func (noopProber) Verdict() membership.Verdict { return membership.Verdict{} }
func (noopProber) Known() []membership.Known   { return nil }

// Tracker is the state of the other nodes. Except for MarkDown, it is used by passes only.
type Tracker struct {
	prober      Prober
	setKeys     func(keys [][probe.KeySize]byte) error
	logger      logr.Logger
	reportAfter time.Duration

	verdict   membership.Verdict
	endpoints *unprogrammed.Tracker
	names     map[forwarding.NodeID]string
	targetsOf targetInput
	targets   map[forwarding.NodeID]fib.Target
}

type targetInput struct {
	self  forwarding.Self
	nodes []model.Node
}

// New returns a Tracker. prober may be nil: other nodes probe this one even if it probes none. setKeys sets
// the keys of probes that the data plane answers.
func New(prober Prober, setKeys func(keys [][probe.KeySize]byte) error, reportAfter time.Duration, logger logr.Logger) *Tracker {
	if prober == nil {
		prober = noopProber{}
	}
	return &Tracker{prober: prober, setKeys: setKeys, reportAfter: reportAfter, logger: logger, endpoints: unprogrammed.New(nil)}
}

// Resume treats the previous agent's endpoints as programmed. It must be called before Annotate.
func (w *Tracker) Resume(previous *model.Snapshot) {
	if previous != nil {
		w.endpoints = unprogrammed.New(previous.EndpointSlices)
	}
}

// Annotate returns the objects with down nodes marked, and without new endpoints of nodes whose agents are
// silent.
func (w *Tracker) Annotate(objects *model.Snapshot, now time.Time) *model.Snapshot {
	verdict := w.prober.Verdict()
	if w.names == nil {
		// Before the first pass, names come from the previous agent's objects.
		w.names = map[forwarding.NodeID]string{}
		for _, lbNode := range objects.LBNodes {
			w.names[forwarding.NodeID(lbNode.Spec.ID)] = lbNode.Name
		}
	}
	w.log(verdict)
	w.verdict = verdict
	seen := *objects
	seen.Down = downIn(verdict)
	seen.CutOff = verdict.CutOff
	silent := make(map[string]time.Time, len(verdict.AgentSilent))
	for id, since := range verdict.AgentSilent {
		silent[w.names[id]] = since
	}
	down := make(map[string]bool, len(seen.Down))
	for id := range seen.Down {
		down[w.names[id]] = true
	}
	seen.EndpointSlices = w.endpoints.Advance(objects.EndpointSlices, silent, down, now)
	return &seen
}

// MarkDown makes the data plane skip down nodes until a pass has removed them from all tables.
func (w *Tracker) MarkDown(setDown func(down map[forwarding.NodeID]bool) error) {
	if err := setDown(downIn(w.prober.Verdict())); err != nil {
		w.logger.Error(err, "Could not mark down nodes; they receive packets until the node tables are updated")
	}
}

func downIn(verdict membership.Verdict) map[forwarding.NodeID]bool { return idsOf(verdict.Down) }

func idsOf(since map[forwarding.NodeID]time.Time) map[forwarding.NodeID]bool {
	ids := make(map[forwarding.NodeID]bool, len(since))
	for id := range since {
		ids[id] = true
	}
	return ids
}

// Down returns the nodes that were down in the last pass and whether this node may be cut off.
func (w *Tracker) Down() (down map[forwarding.NodeID]bool, cutOff bool) {
	return downIn(w.verdict), w.verdict.CutOff || len(w.verdict.Held) > 0
}

// Silent returns the nodes that count as up but do not answer for VIPs on links: they do not answer probes
// while this node may be cut off, or their agents are silent.
func (w *Tracker) Silent() map[forwarding.NodeID]bool {
	silent := w.Held()
	maps.Copy(silent, idsOf(w.verdict.AgentSilent))
	return silent
}

// Held returns the nodes that count as up without answering probes, because this node may be cut off.
func (w *Tracker) Held() map[forwarding.NodeID]bool { return idsOf(w.verdict.Held) }

// Answers returns a function that reports whether the named node answers probes, or nil if probing is
// disabled. This node always answers, a node that never answered does not.
func (w *Tracker) Answers(objects *model.Snapshot) func(node string) bool {
	if _, asksNone := w.prober.(noopProber); asksNone {
		return nil
	}
	up := sync.OnceValue(func() map[string]bool {
		ids := map[forwarding.NodeID]bool{}
		for _, known := range w.prober.Known() {
			ids[known.ID] = known.Lost.IsZero()
		}
		names := map[string]bool{}
		for _, lbNode := range objects.LBNodes {
			names[lbNode.Name] = ids[forwarding.NodeID(lbNode.Spec.ID)]
		}
		return names
	})
	return func(node string) bool { return node == objects.NodeName || up()[node] }
}

func (w *Tracker) log(verdict membership.Verdict) {
	for id := range verdict.Down {
		if _, before := w.verdict.Down[id]; !before {
			w.logger.Info("Node is down: it receives no packets until it answers probes again", "peer", w.names[id])
		}
	}
	for id := range w.verdict.Down {
		if _, now := verdict.Down[id]; !now {
			w.logger.Info("Node is no longer considered down", "peer", w.names[id])
		}
	}
	for id := range verdict.AgentSilent {
		if _, before := w.verdict.AgentSilent[id]; !before {
			w.logger.Info("The agent of a node is silent: the node redirects new flows to other nodes", "peer", w.names[id])
		}
	}
	for id := range w.verdict.AgentSilent {
		if _, now := verdict.AgentSilent[id]; !now {
			w.logger.Info("The agent of a node is no longer silent", "peer", w.names[id])
		}
	}
	if (len(verdict.Held) > 0) != (len(w.verdict.Held) > 0) {
		w.logger.Info("At least half of the nodes stopped answering at once: they are not considered down",
			"held", len(verdict.Held))
	}
	if verdict.Lossy.IsZero() != w.verdict.Lossy.IsZero() {
		w.logger.Info("Paths to more than half of the nodes lose packets, as this node's own link would", "lossy", !verdict.Lossy.IsZero())
	}
	if verdict.CutOff != w.verdict.CutOff {
		w.logger.Info("This node may be isolated: other nodes announce VIPs with endpoints there",
			"cutOff", verdict.CutOff, "held", len(verdict.Held), "down", len(verdict.Down))
	}
}

// SetTargets sets the nodes to probe and the keys of probes that this node answers.
func (w *Tracker) SetTargets(m *model.Model, tunnel forwarding.TunnelKeys) error {
	keys := probe.Keys(tunnel)
	raw := make([][probe.KeySize]byte, 0, len(keys))
	for _, key := range keys {
		raw = append(raw, key)
	}
	if err := w.setKeys(raw); err != nil {
		return err
	}
	if w.names == nil || w.targetsOf.self != m.Self || !delta.IsSame(w.targetsOf.nodes, m.Nodes) {
		w.read(m)
	}
	w.prober.SetTargets(probe.Want{Self: m.Self.ID, Keys: keys, Targets: w.targets})
	return nil
}

// read derives names and targets from the model. Models share unchanged lists of nodes.
func (w *Tracker) read(m *model.Model) {
	w.targetsOf = targetInput{m.Self, m.Nodes}
	nodes := make(map[forwarding.NodeID]forwarding.Node, len(m.Nodes))
	w.names = make(map[forwarding.NodeID]string, len(m.Nodes))
	for i := range m.Nodes {
		w.names[m.Nodes[i].ID] = m.Nodes[i].Name
		if m.Nodes[i].ID != m.Self.ID {
			nodes[m.Nodes[i].ID] = m.Nodes[i].Node
		}
	}
	w.targets = nil
	if m.Self.ID != 0 {
		w.targets = fib.Targets(m.Self, nodes)
	}
}

// Observe returns the nodes to report and the delay until there are more, or 0.
func (w *Tracker) Observe(self forwarding.NodeID, now time.Time) (_ status.NodeHealth, again time.Duration) {
	delay := w.reportAfter
	if w.verdict.CutOff {
		delay /= 6
	}
	delay += ReportSpread * time.Duration(self%64) / 64
	due := func(since map[forwarding.NodeID]time.Time) (ids []forwarding.NodeID) {
		for _, id := range slices.Sorted(maps.Keys(since)) {
			if wait := since[id].Add(delay).Sub(now); wait > 0 {
				again = notify.Soonest(again, wait)
				continue
			}
			ids = append(ids, id)
		}
		return ids
	}
	named := func(ids []forwarding.NodeID) (names []string) {
		for _, id := range ids {
			names = append(names, w.names[id])
		}
		return names
	}
	out := status.NodeHealth{
		Down: named(due(w.verdict.Down)), Held: named(due(w.verdict.Held)), Narrow: named(due(w.verdict.LowMTU)),
	}
	for _, id := range due(w.verdict.AgentSilent) {
		if slices.Contains(out.Down, w.names[id]) {
			continue
		}
		out.Silent = append(out.Silent, w.names[id]+" since "+w.verdict.AgentSilent[id].UTC().Format(time.RFC3339))
	}
	if since := w.verdict.Lossy; !since.IsZero() {
		out.Lossy = len(due(map[forwarding.NodeID]time.Time{self: since})) > 0
	}
	out.CutOff = w.verdict.CutOff && len(out.Down)+len(out.Held) > 0
	return out, again
}
