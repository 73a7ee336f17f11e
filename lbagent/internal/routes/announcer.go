// SPDX-License-Identifier: Apache-2.0

// Package routes has the routes of a node announced as its passes decide (package announce): to
// routers over BGP, and on links by answers.
package routes

import (
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/duplicate"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/l2"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

// Speaker has the sessions with routers.
type Speaker interface {
	Prepare(want bgp.Want)
	Set(want bgp.Want) error
	Sessions() []bgp.Session
	Announced() *announce.Prefixes
	DynamicNeighbors() []netip.Addr
}

// Handover is what passes say of a shutdown, and what they hear of it.
type Handover interface {
	// See notes whether the node shuts down.
	See(shutsDown bool)
	// HasBegun reports whether the node is to withdraw everything.
	HasBegun() bool
	// Withdrawn notes that no route is announced any more.
	Withdrawn()
}

// Config is how routes are announced.
type Config struct {
	Speaker  Speaker
	Handover Handover
	// DrainDelay is how long a node that departs announces its routes as those to be left.
	DrainDelay time.Duration
	// UnreadyDelay is how long a Cluster VIP stays announced without an endpoint.
	UnreadyDelay time.Duration
	// Duplicates finds hosts that have the address of a VIP; nil where nobody is asked.
	Duplicates *duplicate.Detector
	// Layer2 answers for VIPs on links; nil where nobody does.
	Layer2 *l2.Answerer
	// Moved is called with each step that a pass comes to.
	Moved  func(step string)
	Logger logr.Logger
}

// Announcer announces what passes decide. Only they use it.
type Announcer struct {
	Config
	departure announce.Departure
	unready   announce.Unready
	decider   announce.Decider
	// decisions are those of the last pass.
	decisions []announce.Decision
	// announced are the VIPs that the last pass announced or, after a start, those that the
	// agent before may have announced.
	announced map[netip.Addr]bool
	// told are the prefixes that the speaker announced when announced was found out.
	told *announce.Prefixes
	// begun is true once the speaker was told of routes.
	begun bool
	// established are the peers whose session was, when that was logged last.
	established map[string]bool
}

// New returns an announcer that goes on from what the agent before left in the maps.
func New(have *forwarding.State, config Config) *Announcer {
	return &Announcer{Config: config, announced: Adopted(have)}
}

// Pass is what one pass knows.
type Pass struct {
	Model   *model.Model
	Objects *model.Snapshot
	// Change is what has changed since the last pass.
	Change announce.Change
	// Programmed is what the maps hold, Planned what they shall hold.
	Programmed, Planned *forwarding.State
	// Unattached are the peers of which the programs do not see all packets, with the reason.
	Unattached map[string]string
	// Uplinks are the names of all uplinks, Attached those that have the programs.
	Uplinks, Attached []string
	// Silent are the nodes that answer for no VIP on their links. Held are those of them that count
	// as up because this node may be cut off.
	Silent, Held map[forwarding.NodeID]bool
}

// Result is what was decided.
type Result struct {
	Decisions  []announce.Decision
	Duplicates []duplicate.Holder
	// L2 is what the LBNode says of links, Answering the VIPs that this node answers for there.
	L2        []millracev1beta1.L2Reach
	Answering []netip.Addr
	// Again is after how long there may be other routes; zero means there is no such time.
	Again time.Duration
}

// Prepare has the speaker begin with the sessions of the first model, of which no route is decided yet.
func (a *Announcer) Prepare(m *model.Model, passwords map[string]string) {
	if !a.begun {
		a.Speaker.Prepare(wantBGP(m, nil, passwords))
	}
}

// Announce decides on the routes of a pass, and gives them to the speaker and to the links. An error
// is of the speaker: what was decided is told all the same.
func (a *Announcer) Announce(pass *Pass, now time.Time) (Result, error) {
	a.Moved("routes")
	m := pass.Model
	a.Handover.See(m.Departing == millracev1beta1.DepartureShuttingDown)
	node := announce.Node{
		Programmed: pass.Programmed, Planned: pass.Planned, Unattached: pass.Unattached, Announced: a.announced,
		Final: a.Handover.HasBegun(), Silent: pass.Silent, Held: pass.Held,
	}
	var result Result
	var departs, unready, checked time.Duration
	node.Phase, departs = a.departure.Advance(m.Departing != "" || node.Final, a.DrainDelay, now)
	node.Unready, unready = a.unready.Advance(m, pass.Change.Model, a.announced, a.UnreadyDelay, now)
	a.Layer2.Look(m, pass.Objects, pass.Attached, &node)
	a.Duplicates.Leave(a.Layer2.Elsewhere())
	node.Duplicates, result.Duplicates, checked = a.Duplicates.Judge(m, pass.Objects, pass.Uplinks, a.announced, now)
	result.Again = wake.Soonest(departs, unready, checked)
	routes, decisions := a.decider.Decide(m, pass.Change, &node)
	same := delta.IsSame(decisions, a.decisions)
	a.decisions, result.Decisions = decisions, decisions
	a.Layer2.Answer(m, decisions, node.Silent)
	result.L2, result.Answering = a.Layer2.Reach(), a.Layer2.Answers()
	a.Moved("BGP")
	a.begun = true
	err := a.Speaker.Set(wantBGP(m, routes, pass.Objects.Passwords))
	if node.Final && node.Phase == announce.Left && err == nil {
		a.Handover.Withdrawn()
	}
	if told := a.Speaker.Announced(); err != nil {
		a.announced, a.told = announced(a.announced, decisions, told, err), nil
	} else if told != a.told || !same {
		a.announced, a.told = announced(a.announced, decisions, told, nil), told
	}
	return result, err
}

// LogSessions tells sessions that were established or lost since last time.
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
