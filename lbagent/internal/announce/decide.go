// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Reasons of Decisions, in the order in which they are looked for. The API says what they
// mean: they are in LBNodeReports.
const (
	ReasonNoService       = millracev1beta1.ReasonNoService
	ReasonNotSelected     = millracev1beta1.ReasonNotSelected
	ReasonNoPeer          = millracev1beta1.ReasonNoPeer
	ReasonOccupied        = millracev1beta1.ReasonOccupied
	ReasonDuplicate       = millracev1beta1.ReasonDuplicateAddress
	ReasonChecking        = millracev1beta1.ReasonCheckingAddress
	ReasonNoFrontend      = millracev1beta1.ReasonNoFrontend
	ReasonNotAttached     = millracev1beta1.ReasonNotAttached
	ReasonNotProgrammed   = millracev1beta1.ReasonNotProgrammed
	ReasonNoEndpoints     = millracev1beta1.ReasonNoEndpoints
	ReasonNoLocalEndpoint = millracev1beta1.ReasonNoLocalEndpoint
	ReasonNoNextHop       = millracev1beta1.ReasonNoNextHop
	ReasonNodeDraining    = millracev1beta1.ReasonNodeDraining
	ReasonReleasing       = millracev1beta1.ReasonReleasing

	ReasonAnsweredElsewhere = millracev1beta1.ReasonAnsweredElsewhere
	ReasonNoLink            = millracev1beta1.ReasonNoLink
)

// Node is what a decision depends on, besides the objects.
type Node struct {
	// Programmed is what the maps hold, Planned what they are to hold: frontends for which
	// there is no room are not in it.
	Programmed, Planned *forwarding.State
	// Unattached are the peers whose packets may come in without being seen by the programs,
	// by the name of the LBPeer, with what keeps them from it.
	Unattached map[string]string
	// Duplicates are the VIPs of which it is not known that no host has the address, with what is
	// known instead: the reasons are ReasonDuplicate and ReasonChecking.
	Duplicates map[netip.Addr]Decision
	// Announced are the VIPs that are announced already.
	Announced map[netip.Addr]bool
	// Unready are the VIPs that stay announced without an endpoint; see Unready.Advance.
	Unready map[netip.Addr]bool
	// Phase is that of the node's planned departure.
	Phase Phase
	// Final is true where the node departs for good, be there another one or not.
	Final bool
	// Links are where this node answers for VIPs, as Reach found.
	Links map[string][]Link
	// Silent are the other nodes that do not answer probes, also such as count as up. Held are
	// those of them that count as up because this node may be cut off.
	Silent, Held map[forwarding.NodeID]bool
}

// Decide returns the routes that this node announces and, for each VIP in the
// order of addresses, where it is announced to or why it is not.
//
// A VIP is announced while one of its frontends serves. Such a frontend is programmed, with
// the tables that it needs, and has a usable endpoint. For externalTrafficPolicy Cluster it
// can be anywhere. For Local it is a ready one on this node, so that a node whose endpoints
// all terminate drains (KEP-1669). Packets to the VIP's other Local frontends are then sent
// on to nodes that have their endpoints.
//
// It is announced to the peers of which every packet comes in by an uplink with the programs.
//
// A VIP that is not announced yet waits until all its frontends are programmed as planned.
// Those that are not planned, as there is no room for them, are not waited for.
//
// A node that departs announces no VIP that another node can take; see Departure. A VIP that its
// Services give up is announced as one to be left, then not at all (VIPClaim.Release).
//
// A node that is cut off from the others announces all its VIPs as those to be left. On its links it
// answers only for VIPs without endpoints on the nodes that it lost.
//
// No VIP is announced with a frontend that admits clients whom its Service does not.
//
// Where an advertisement aggregates, one route to the aggregate is in place of those to its
// VIPs, as soon as the maps hold the aggregate: packets to its other addresses are dropped then.
func Decide(m *model.Model, node *Node) (Routes, []Decision) {
	gathered := gathering{}
	decisions := make([]Decision, 0, len(m.VIPs))
	d := deciding{model: m, node: node, exceeding: exceedingOf(node)}
	rest := m.Frontends
	var frontends []*model.Frontend
	for i := range m.VIPs {
		vip := &m.VIPs[i]
		frontends, rest = frontendsOf(vip.Address, rest)
		decisions = append(decisions, d.decide(vip, frontends, gathered.add))
	}
	return gathered.routes(), decisions
}

// deciding is what the decisions of a pass have in common.
type deciding struct {
	model *model.Model
	node  *Node
	// exceeding are frontends that admit clients whom their Services do not, by their VIPs.
	exceeding map[netip.Addr]forwarding.FrontendKey
}

// decide decides about a VIP, and adds its routes.
func (d *deciding) decide(
	vip *model.VIP, frontends []*model.Frontend, add func(target model.Target, route Route, leaving bool),
) Decision {
	m, node := d.model, d.node
	if vip.Canary != "" {
		return d.decideCanary(vip, add)
	}
	elected := elect(m, vip, frontends, node)
	selected, decision := peersOf(m, vip)
	if elected.wanted && decision.Reason == ReasonNoPeer {
		decision = Decision{}
	}
	if open, found := d.exceeding[vip.Address]; found && decision.Reason == "" {
		decision = Decision{Reason: ReasonNotProgrammed, Message: fmt.Sprintf(
			"%s admits clients outside its source ranges, and could not be shut", open)}
	}
	if decision.Reason == "" {
		decision = refuse(m, frontends, selected, node, &elected)
	}
	leaving := m.CutOff
	if decision.Reason == "" {
		var given bool
		decision, given = giveUp(vip)
		leaving = leaving || given
	}
	if decision.Reason == "" {
		var departs bool
		decision, departs = depart(m, frontends, node)
		leaving = leaving || departs
	}
	if decision.Reason == "" {
		for _, target := range selected {
			route := routeOf(m, node, vip.Address, target, frontends)
			if _, unattached := node.Unattached[target.Peer.Name]; unattached || !route.NextHop.IsValid() {
				continue
			}
			add(target, route, leaving)
			decision.Peers = append(decision.Peers, target.Peer.Name)
		}
		decision = elected.answer(decision, m.Self.ID)
	}
	decision.Elsewhere = elected.isElsewhere(m.Self.ID)
	decision.VIP = vip.Address
	return decision
}

// frontendsOf returns the frontends of a VIP among sorted ones, and those after them.
func frontendsOf(vip netip.Addr, sorted []*model.Frontend) (own, rest []*model.Frontend) {
	first := 0
	for first < len(sorted) && sorted[first].Key.VIP.Compare(vip) < 0 {
		first++
	}
	after := first
	for after < len(sorted) && sorted[after].Key.VIP == vip {
		after++
	}
	return sorted[first:after], sorted[after:]
}

// exceedingOf returns of each VIP the first frontend that admits clients whom its Service does not.
func exceedingOf(node *Node) map[netip.Addr]forwarding.FrontendKey {
	exceeding := map[netip.Addr]forwarding.FrontendKey{}
	for key := range forwarding.Exceeding(node.Programmed, node.Planned) {
		if first, found := exceeding[key.VIP]; !found || key.Compare(first) < 0 {
			exceeding[key.VIP] = key
		}
	}
	return exceeding
}

// routeOf is the route to a VIP, or to its aggregate, for a peer.
func routeOf(m *model.Model, node *Node, vip netip.Addr, target model.Target, frontends []*model.Frontend) Route {
	route := routeTo(target, m, vip)
	if target.Advertisement.Weighed {
		route.Weight = weight(m, frontends)
	}
	if prefix, aggregates := target.Advertisement.Aggregate(vip); aggregates && holds(node.Programmed, prefix) {
		route.Prefix = prefix
	}
	return route
}

// peersOf returns the peers that the VIP is to be announced to, in the order of
// their names; without any, the decision says why.
func peersOf(m *model.Model, vip *model.VIP) ([]model.Target, Decision) {
	if len(vip.Services) == 0 {
		return nil, Decision{Reason: ReasonNoService, Message: "no Service has the address"}
	}
	targets, selected := m.TargetsOf(vip)
	if !selected {
		return nil, Decision{Reason: ReasonNotSelected, Message: "no VIPAdvertisement selects the address on this node"}
	}
	if len(targets) == 0 {
		return nil, Decision{Reason: ReasonNoPeer, Message: fmt.Sprintf(
			"no LBPeer of this node is both selected and for %s", familyName(vip.Address))}
	}
	return targets, Decision{}
}

// refuse returns why this node must not announce a VIP to any peer; a decision
// without a reason where it may.
func refuse(m *model.Model, frontends []*model.Frontend, selected []model.Target, node *Node, elected *election) Decision {
	vip := elected.vip
	if vip.Occupant != "" {
		return Decision{Reason: ReasonOccupied, Message: desired.OccupiedVIP(vip.Address, vip.Occupant)}
	}
	if decision, found := node.Duplicates[vip.Address]; found {
		return decision
	}
	if len(frontends) == 0 {
		return Decision{Reason: ReasonNoFrontend, Message: "no Service on the address has a port of its own that can be served"}
	}
	if uplink := withheld(selected, node); uplink != "" && !elected.wanted {
		return Decision{Reason: ReasonNotAttached, Message: uplink}
	}
	if _, found := node.Programmed.VIPs[vip.Address]; !found {
		return Decision{Reason: ReasonNotProgrammed, Message: "the address is not in the maps"}
	}
	if missing := missing(frontends, node, node.Announced[vip.Address]); missing != nil {
		return Decision{Reason: ReasonNotProgrammed, Message: fmt.Sprintf("%s is not in the maps", missing.Key)}
	}
	if attractsNobody(vip.Address, frontends, node) && !staysCutOff(m, vip.Address, frontends, node) && !elected.takes(m, frontends) {
		return withoutEndpoints(frontends)
	}
	if !elected.wanted && !slices.ContainsFunc(selected, func(target model.Target) bool { return nextHop(m, target.Peer, vip.Address).IsValid() }) {
		return Decision{Reason: ReasonNoNextHop, Message: fmt.Sprintf(
			"neither the LBNode of this node nor an interface to a router has an %s address", familyName(vip.Address))}
	}
	return Decision{}
}

// withheld says why no peer may send packets for the VIP; it is empty where one may.
func withheld(selected []model.Target, node *Node) string {
	message := ""
	for _, target := range selected {
		reason, unattached := node.Unattached[target.Peer.Name]
		if !unattached {
			return ""
		}
		message = cmp.Or(message, fmt.Sprintf("LBPeer %s: %s", target.Peer.Name, reason))
	}
	return message
}

// missing returns a frontend that the VIP cannot be announced without; nil where there is
// none.
func missing(frontends []*model.Frontend, node *Node, announced bool) *model.Frontend {
	serves := false
	var attracting *model.Frontend
	for _, frontend := range frontends {
		if !announced && isAwaited(frontend.Key, node) {
			return frontend
		}
		if attracts(frontend) {
			serves = serves || isProgrammed(frontend, node.Programmed)
			attracting = cmp.Or(attracting, frontend)
		}
	}
	if serves {
		return nil
	}
	return attracting
}

// isAwaited reports whether a frontend is planned and not programmed as planned. The zones
// that it leaves last, it leaves after its VIP is announced.
func isAwaited(key forwarding.FrontendKey, node *Node) bool {
	planned, found := node.Planned.Frontends[key]
	if !found {
		return false
	}
	programmed, found := node.Programmed.Frontends[key]
	programmed.Zones, planned.Zones = [forwarding.Zones]forwarding.NodeTableSlot{}, [forwarding.Zones]forwarding.NodeTableSlot{}
	return !found || programmed != planned
}

// isProgrammed reports whether the maps hold the frontend so that it serves, be it in part
// or, where it could not be written, by the traffic policy that it had.
func isProgrammed(frontend *model.Frontend, programmed *forwarding.State) bool {
	entry, found := programmed.Frontends[frontend.Key]
	if !found || frontend.Restricted && !isRestricted(frontend, entry) {
		return false
	}
	return entry.Table != 0 || entry.Local && entry.Endpoints != 0
}

// isRestricted reports whether the entry keeps out whom the frontend does not
// admit, and only where the frontend admits nobody all of them.
func isRestricted(frontend *model.Frontend, entry forwarding.Frontend) bool {
	return entry.Ranges != 0 && (entry.Ranges != forwarding.Nobody || len(frontend.Sources) == 0)
}

// attracts reports whether the frontend has what new connections need.
func attracts(frontend *model.Frontend) bool {
	if frontend.Local {
		return len(frontend.Endpoints) > 0 && !frontend.Terminating
	}
	return len(frontend.Weights) > 0
}

func withoutEndpoints(frontends []*model.Frontend) Decision {
	for _, frontend := range frontends {
		if frontend.Local && len(frontend.Weights) > 0 {
			return Decision{Reason: ReasonNoLocalEndpoint, Message: fmt.Sprintf(
				"%s has a ready endpoint on this node, and externalTrafficPolicy is Local", noneOf(frontends))}
		}
	}
	return Decision{Reason: ReasonNoEndpoints, Message: noneOf(frontends) + " has a usable endpoint"}
}

// noneOf names the Services of frontends as the subject of a sentence.
func noneOf(frontends []*model.Frontend) string {
	var names []string
	for _, frontend := range frontends {
		if name := frontend.Service.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 1 {
		return "none of the Services " + strings.Join(names, ", ")
	}
	return "no port of Service " + names[0]
}

// weight is what the node's endpoints of Local frontends weigh together: what it serves itself,
// and no other node does for it.
func weight(m *model.Model, frontends []*model.Frontend) uint32 {
	sum := uint32(0)
	for _, frontend := range frontends {
		if frontend.Local && attracts(frontend) {
			sum += frontend.Weights[m.Self.ID]
		}
	}
	return sum
}

func familyName(address netip.Addr) string {
	if address.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
