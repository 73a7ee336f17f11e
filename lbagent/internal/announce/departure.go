// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// gracefulShutdown is the community GRACEFUL_SHUTDOWN (RFC 8326, section 5): routers prefer any other path
// and use this one until they have it.
const gracefulShutdown = 0xffff0000

// Phase is the phase of a planned departure.
type Phase int

const (
	// Present nodes announce normally.
	Present Phase = iota
	// Leaving nodes announce their routes with GRACEFUL_SHUTDOWN.
	Leaving
	// Left nodes announce no routes.
	Left
)

// Departure tracks a node's planned departure: its routes carry GRACEFUL_SHUTDOWN for a delay and are then
// withdrawn. The node forwards packets in all phases. The zero value is ready to use.
type Departure struct {
	known bool
	phase Phase
	since time.Time
}

// Advance returns the current phase and the duration until its next call is due, or 0. If the first
// call has departing set, the phase is Left, because the previous agent has withdrawn the routes already.
func (d *Departure) Advance(departing bool, delay time.Duration, now time.Time) (Phase, time.Duration) {
	switch {
	case !departing:
		d.phase = Present
	case !d.known:
		d.phase = Left
	case d.phase == Present:
		d.phase, d.since = Leaving, now
	}
	d.known = true
	if d.phase != Leaving {
		return d.phase, 0
	}
	if left := d.since.Add(delay).Sub(now); left > 0 {
		return Leaving, left
	}
	d.phase = Left
	return Left, 0
}

// successor returns a node that can serve the VIP in place of this one: up, not departing, not booting, and
// with the endpoints that the frontends need. Without a successor the departing node keeps its routes.
func successor(m *model.Model, frontends []*model.Frontend) (string, bool) {
	for i := range m.Nodes {
		node := &m.Nodes[i]
		if node.ID == m.Self.ID || node.Departing != "" || node.Booting || node.Down {
			continue
		}
		// Routers must send Local traffic to a node with endpoints.
		serves := func(frontend *model.Frontend) bool { return !frontend.Local || frontend.Weights[node.ID] > 0 }
		if slices.ContainsFunc(frontends, func(f *model.Frontend) bool { return attracts(f) && serves(f) }) {
			return node.Name, true
		}
	}
	return "", false
}

// depart returns the reason to withdraw the VIP, or whether its routes carry GRACEFUL_SHUTDOWN.
func depart(m *model.Model, frontends []*model.Frontend, node *Node) (decision Decision, leaving bool) {
	switch {
	case node.Phase == Present:
		return Decision{}, false
	case node.Final && node.Phase == Left && m.Departing != "":
		return Decision{Reason: ReasonNodeDraining, Message: fmt.Sprintf("this node is drained (%s), and its agent ends", m.Departing)}, false
	case node.Final && node.Phase == Left:
		return Decision{Reason: ReasonNodeDraining, Message: "the agents are uninstalled"}, false
	case node.Final:
		return Decision{}, true
	}
	next, found := successor(m, frontends)
	switch {
	case !found:
		return Decision{}, false
	case node.Phase == Leaving:
		return Decision{}, true
	}
	return Decision{Reason: ReasonNodeDraining, Message: fmt.Sprintf(
		"this node is drained (%s), and others such as %s take its packets", m.Departing, next)}, false
}

// giveUp returns the reason to withdraw a VIP in release, or whether its routes carry GRACEFUL_SHUTDOWN.
// Routers use such paths while no other path exists, for example from another cluster.
func giveUp(vip *model.VIP) (decision Decision, leaving bool) {
	switch vip.Release {
	case "":
		return Decision{}, false
	case millracev1beta1.ReleaseWithdrawn:
		return Decision{Reason: ReasonReleasing, Message: "no Service keeps the address: it will be free"}, false
	default:
		return Decision{}, true
	}
}

// staysCutOff reports whether an announced VIP stays announced although this node is cut off from all its
// endpoints. Its route carries GRACEFUL_SHUTDOWN and may be the last path; its packets are rejected.
func staysCutOff(m *model.Model, vip netip.Addr, frontends []*model.Frontend, node *Node) bool {
	return m.CutOff && node.Announced[vip] &&
		slices.ContainsFunc(frontends, func(f *model.Frontend) bool { return f.Unreached && !f.Local })
}

// left adds GRACEFUL_SHUTDOWN. For internal peers that ignore the community, it also sets local preference
// 0.
func (r Route) left(internal bool) Route {
	r.Communities = append(slices.Clone(r.Communities), gracefulShutdown)
	if internal {
		lowest := uint32(0)
		r.LocalPreference = &lowest
	}
	return r
}
