// SPDX-License-Identifier: Apache-2.0

// Package routes announces the routes that passes decide on (package announce): to routers over BGP, and
// on links by ARP and Neighbor Discovery.
package routes

import (
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/dad"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/l2"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

// Speaker manages the sessions with routers.
type Speaker interface {
	Set(want bgp.Want) error
	Sessions() []bgp.Session
	Announced() *announce.Prefixes
	DynamicNeighbors() []netip.Addr
}

// Handover exchanges the state of a node shutdown with passes.
type Handover interface {
	SetShutdown(shutsDown bool)
	HasBegun() bool
	Withdrawn()
}

// Config configures an Announcer.
type Config struct {
	Speaker  Speaker
	Handover Handover
	// DrainDelay is how long a departing node announces its routes with low preference.
	DrainDelay time.Duration
	// UnreadyDelay is how long a Cluster VIP without a ready endpoint remains announced.
	UnreadyDelay time.Duration
	Duplicates   *dad.Detector
	Layer2       *l2.Controller
	OnStep       func(step string)
	Logger       logr.Logger
}

// Announcer announces the decisions of passes. It is not safe for concurrent use.
type Announcer struct {
	Config
	drain     announce.Drain
	unready   announce.Unready
	decider   announce.Decider
	decisions []announce.Decision
	// announced are the VIPs that the previous pass announced or, after a start, that the previous agent
	// may have announced.
	announced map[netip.Addr]bool
	// speakerPrefixes are the prefixes that the speaker announced when announced was computed.
	speakerPrefixes *announce.Prefixes
	established     map[string]bool
}

// New returns an announcer that continues from the maps of the previous agent.
func New(have *forwarding.State, config Config) *Announcer {
	return &Announcer{Config: config, announced: Adopted(have)}
}

// Pass is the input of Announce.
type Pass struct {
	Model               *model.Model
	Objects             *model.Snapshot
	Change              announce.Change
	Programmed, Planned *forwarding.State
	// Unattached maps peers whose packets the programs do not all receive to the reason.
	Unattached map[string]string
	// Uplinks are the names of all uplinks, Attached the ones with the programs.
	Uplinks, Attached []string
	// Silent are the nodes that answer for no VIP on their links. Held are the ones among them that count
	// as up because this node may be cut off.
	Silent, Held map[forwarding.NodeID]bool
}

// Result is the result of Announce.
type Result struct {
	Decisions  []announce.Decision
	Duplicates []dad.Holder
	// L2 is the status of links for the LBNode, Answering the VIPs that this node answers for.
	L2           []millracev1beta1.L2Reach
	Answering    []netip.Addr
	RequeueAfter time.Duration
}

// Announce decides on the routes of a pass and sets them at the speaker and on the links. The result is
// valid even if the speaker returns an error.
func (a *Announcer) Announce(pass *Pass, now time.Time) (Result, error) {
	a.OnStep("routes")
	m := pass.Model
	a.Handover.SetShutdown(m.Draining == millracev1beta1.DrainReasonShuttingDown)
	node := announce.Node{
		Programmed: pass.Programmed, Planned: pass.Planned, Unattached: pass.Unattached, Announced: a.announced,
		Final: a.Handover.HasBegun(), Silent: pass.Silent, Held: pass.Held,
	}
	var result Result
	var departs, unready, checked time.Duration
	node.Phase, departs = a.drain.Advance(m.Draining != "" || node.Final, a.DrainDelay, now)
	node.Unready, unready = a.unready.Advance(m, pass.Change.Model, a.announced, a.UnreadyDelay, now)
	a.Layer2.AddLinks(m, pass.Objects, pass.Attached, &node)
	a.Duplicates.Exclude(a.Layer2.OtherNodeSelected())
	node.Duplicates, result.Duplicates, checked = a.Duplicates.Evaluate(m, pass.Objects, pass.Uplinks, a.announced, now)
	result.RequeueAfter = notify.Soonest(departs, unready, checked)
	routes, decisions := a.decider.Decide(m, pass.Change, &node)
	same := delta.IsSame(decisions, a.decisions)
	a.decisions, result.Decisions = decisions, decisions
	a.Layer2.Apply(m, decisions, node.Silent)
	result.L2, result.Answering = a.Layer2.Reach(), a.Layer2.Answers()
	a.OnStep("BGP")
	err := a.Speaker.Set(wantBGP(m, routes, pass.Objects.Passwords))
	if node.Final && node.Phase == announce.Drained {
		a.Handover.Withdrawn()
	}
	if prefixes := a.Speaker.Announced(); prefixes != a.speakerPrefixes || !same {
		a.announced, a.speakerPrefixes = announced(decisions, prefixes), prefixes
	}
	return result, err
}

// LogSessions logs sessions that were established or lost since the previous call.
func (a *Announcer) LogSessions() {
	established := map[string]bool{}
	for _, session := range a.Speaker.Sessions() {
		up := session.IsEstablished()
		established[session.Peer] = up
		if up && !a.established[session.Peer] {
			a.Logger.Info("BGP session established", "peer", session.Peer, "address", session.Address, "routes", session.Routes)
		}
		if !up && a.established[session.Peer] {
			a.Logger.Info("BGP session lost", "peer", session.Peer, "address", session.Address, "reason", session.Message)
		}
	}
	a.established = established
}
