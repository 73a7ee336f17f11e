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

// gracefulShutdown is the well-known community GRACEFUL_SHUTDOWN (RFC 8326, section 5):
// routers prefer any other path, and go on using this one until they have it.
const gracefulShutdown = 0xffff0000

// Phase is how far a planned departure is.
type Phase int

// Phases of a departure.
const (
	// Present nodes do not depart.
	Present Phase = iota
	// Leaving nodes announce their routes as those to be left.
	Leaving
	// Left nodes announce no route.
	Left
)

// Departure is a node's departure from the routers: first its routes get the community
// GRACEFUL_SHUTDOWN, and after a delay they are withdrawn. The node forwards what still comes
// all the time. The zero value is that of a node of which nothing is known yet.
type Departure struct {
	known bool
	phase Phase
	since time.Time
}

// Advance takes whether the node is to depart. It returns the phase, and after how long
// Advance is due again; 0 means it is not. A node that is to depart when it is first looked
// at has left: the agent before took its routes away, and they must not come back.
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

// successor returns a node that takes packets for a VIP when this one departs: it neither
// departs nor boots nor is down, and has what the VIP's frontends need. Without one a VIP would be served
// by nobody, so the departing node keeps its routes.
func successor(m *model.Model, frontends []*model.Frontend) (string, bool) {
	for i := range m.Nodes {
		node := &m.Nodes[i]
		if node.ID == m.Self.ID || node.Departing != "" || node.Booting || node.Down {
			continue
		}
		// For Local the router must hand packets to a node with endpoints.
		serves := func(frontend *model.Frontend) bool { return !frontend.Local || frontend.Weights[node.ID] > 0 }
		if slices.ContainsFunc(frontends, func(f *model.Frontend) bool { return attracts(f) && serves(f) }) {
			return node.Name, true
		}
	}
	return "", false
}

// depart returns what becomes of a VIP that the node would announce: the reason why it is not
// announced any more, or whether its routes are to be left.
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

// giveUp returns what becomes of a VIP that its Services give up: the reason why it is not
// announced any more, or whether its routes are to be left. That all nodes leave them at once
// takes nothing away: a path to be left is used while there is no other one, such as that of
// another cluster.
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

// staysCutOff reports whether a VIP stays announced that has no endpoint left because this node is
// cut off from those that have one. It is a path to be left, and it may be the last one: whether
// other nodes have one is not for this node to say. What comes by it is refused.
func staysCutOff(m *model.Model, vip netip.Addr, frontends []*model.Frontend, node *Node) bool {
	return m.CutOff && node.Announced[vip] &&
		slices.ContainsFunc(frontends, func(f *model.Frontend) bool { return f.Unreached && !f.Local })
}

// left marks a route as one that routers are to leave. Within an autonomous system the lowest
// local preference says the same to routers that do not know the community.
func (r Route) left(internal bool) Route {
	r.Communities = append(slices.Clone(r.Communities), gracefulShutdown)
	if internal {
		lowest := uint32(0)
		r.LocalPreference = &lowest
	}
	return r
}
