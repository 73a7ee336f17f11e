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
	// Active nodes announce normally.
	Active Phase = iota
	// Draining nodes announce their routes with GRACEFUL_SHUTDOWN.
	Draining
	// Drained nodes announce no routes.
	Drained
)

// Drain tracks a node's planned departure: its routes carry GRACEFUL_SHUTDOWN for a delay and are then
// withdrawn. The node forwards packets in all phases. The zero value is ready to use.
type Drain struct {
	known bool
	phase Phase
	since time.Time
}

// Advance returns the current phase and the duration until its next call is due, or 0. If the first call
// has departing set, the phase is Drained, because the previous agent has withdrawn the routes already.
func (d *Drain) Advance(departing bool, delay time.Duration, now time.Time) (Phase, time.Duration) {
	switch {
	case !departing:
		d.phase = Active
	case !d.known:
		d.phase = Drained
	case d.phase == Active:
		d.phase, d.since = Draining, now
	}
	d.known = true
	if d.phase != Draining {
		return d.phase, 0
	}
	if left := d.since.Add(delay).Sub(now); left > 0 {
		return Draining, left
	}
	d.phase = Drained
	return Drained, 0
}

// successor returns a node that can serve the VIP in place of this one: up, not departing, not booting, and
// with the endpoints that the frontends need. Without a successor the departing node keeps its routes.
func successor(m *model.Model, frontends []*model.Frontend) (string, bool) {
	for i := range m.Nodes {
		node := &m.Nodes[i]
		if node.ID == m.Self.ID || node.Draining != "" || node.Booting || node.Down {
			continue
		}
		// Routers must send Local traffic to a node with endpoints.
		serves := func(frontend *model.Frontend) bool { return !frontend.Local || frontend.Weights[node.ID] > 0 }
		if slices.ContainsFunc(frontends, func(f *model.Frontend) bool { return acceptsConnections(f) && serves(f) }) {
			return node.Name, true
		}
	}
	return "", false
}

// drain returns the reason to withdraw the VIP, or whether its routes carry GRACEFUL_SHUTDOWN.
func drain(m *model.Model, frontends []*model.Frontend, node *Node) (decision Decision, leaving bool) {
	switch {
	case node.Phase == Active:
		return Decision{}, false
	case node.Final && node.Phase == Drained && m.Draining != "":
		return Decision{Reason: ReasonNodeDraining, Message: fmt.Sprintf("this node is drained (%s) and its agent is shutting down", m.Draining)}, false
	case node.Final && node.Phase == Drained:
		return Decision{Reason: ReasonNodeDraining, Message: "the agents are uninstalled"}, false
	case node.Final:
		return Decision{}, true
	}
	next, found := successor(m, frontends)
	switch {
	case !found:
		return Decision{}, false
	case node.Phase == Draining:
		return Decision{}, true
	}
	return Decision{Reason: ReasonNodeDraining, Message: fmt.Sprintf(
		"this node is drained (%s), and other nodes such as %s receive its packets", m.Draining, next)}, false
}

// releaseVIP returns the reason to withdraw a VIP in release, or whether its routes carry GRACEFUL_SHUTDOWN.
// Routers use such paths while no other path exists, for example from another cluster.
func releaseVIP(vip *model.VIP) (decision Decision, leaving bool) {
	switch vip.Release {
	case "":
		return Decision{}, false
	case millracev1beta1.ReleaseWithdrawn:
		return Decision{Reason: ReasonReleasing, Message: "no Service uses the address: it is being released"}, false
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

// withGracefulShutdown adds GRACEFUL_SHUTDOWN. For internal peers that ignore the community, it also sets
// local preference 0.
func (r Route) withGracefulShutdown(internal bool) Route {
	r.Communities = append(slices.Clone(r.Communities), gracefulShutdown)
	if internal {
		lowest := uint32(0)
		r.LocalPreference = &lowest
	}
	return r
}
