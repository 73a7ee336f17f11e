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

// Reasons of Decisions, in the order of evaluation. LBNodeReport uses the same values.
const (
	ReasonNoService       = millracev1beta1.ReasonNoService
	ReasonNotSelected     = millracev1beta1.ReasonNotSelected
	ReasonNoPeer          = millracev1beta1.ReasonNoPeer
	ReasonOccupied        = millracev1beta1.ReasonOccupied
	ReasonDuplicate       = millracev1beta1.ReasonDuplicateAddress
	ReasonChecking        = millracev1beta1.ReasonAddressTentative
	ReasonNoFrontend      = millracev1beta1.ReasonNoFrontend
	ReasonNotAttached     = millracev1beta1.ReasonNotAttached
	ReasonNotProgrammed   = millracev1beta1.ReasonNotProgrammed
	ReasonNoEndpoints     = millracev1beta1.ReasonNoEndpoints
	ReasonNoLocalEndpoint = millracev1beta1.ReasonNoLocalEndpoint
	ReasonNoNextHop       = millracev1beta1.ReasonNoNextHop
	ReasonNodeDraining    = millracev1beta1.ReasonNodeDraining
	ReasonReleasing       = millracev1beta1.ReasonReleasing

	ReasonOtherNodeSelected = millracev1beta1.ReasonOtherNodeSelected
	ReasonNoLink            = millracev1beta1.ReasonNoLink
)

// Node is the node-local input of a decision.
type Node struct {
	// Programmed is the content of the BPF maps, Planned the desired content without frontends that do not
	// fit.
	Programmed, Planned *forwarding.State
	// Unattached maps an LBPeer to the reason why its packets may bypass the BPF programs.
	Unattached map[string]string
	// Duplicates are VIPs whose address is in use or still being checked (ReasonDuplicate, ReasonChecking).
	Duplicates map[netip.Addr]Decision
	Announced  map[netip.Addr]bool
	// Unready are VIPs that remain announced without endpoints; see Unready.Advance.
	Unready map[netip.Addr]bool
	Phase   Phase
	// Final is true if the node leaves even if no other node can take over.
	Final bool
	// Links are the interfaces that can answer for VIPs, as returned by Reach.
	Links map[string][]Link
	// Silent are other nodes that do not answer probes, even if the model counts them as up. Held is the
	// subset that counts as up because this node may be cut off.
	Silent, Held map[forwarding.NodeID]bool
}

// Decide returns this node's routes and one decision per VIP, sorted by address.
//
// A VIP is announced while at least one frontend is programmed, including its tables, and has a usable
// endpoint: any endpoint for externalTrafficPolicy Cluster, a ready endpoint on this node for Local, so
// that a node with only terminating endpoints drains (KEP-1669). Packets to the VIP's other Local frontends
// are forwarded to nodes with endpoints. Before its first announcement a VIP waits for all planned
// frontends.
//
// Only peers whose packets all arrive on uplinks with BPF programs receive routes. A VIP with a frontend
// that admits sources outside its Service's ranges is not announced.
//
// A departing node withdraws VIPs that have a successor; see Drain. VIPs in release first carry
// GRACEFUL_SHUTDOWN and are then withdrawn (VIPClaim.Release). A cut-off node marks all its routes with
// GRACEFUL_SHUTDOWN and answers on links only for VIPs without endpoints on the lost nodes.
//
// If an advertisement aggregates, a single route to the aggregate replaces the VIPs' routes once the maps
// contain the aggregate and therefore drop packets to its unused addresses.
func Decide(m *model.Model, node *Node) (Routes, []Decision) {
	gathered := routeSet{}
	decisions := make([]Decision, 0, len(m.VIPs))
	d := evaluator{model: m, node: node, overpermissive: overpermissiveFrontends(node)}
	rest := m.Frontends
	var frontends []*model.Frontend
	for i := range m.VIPs {
		vip := &m.VIPs[i]
		frontends, rest = frontendsOf(vip.Address, rest)
		decisions = append(decisions, d.decide(vip, frontends, gathered.add))
	}
	return gathered.routes(), decisions
}

type evaluator struct {
	model *model.Model
	node  *Node
	// overpermissive maps a VIP to a frontend that admits sources outside its Service's ranges.
	overpermissive map[netip.Addr]forwarding.FrontendKey
}

func (d *evaluator) decide(
	vip *model.VIP, frontends []*model.Frontend, add func(target model.Target, route Route, leaving bool),
) Decision {
	m, node := d.model, d.node
	if vip.Canary != "" {
		return d.decideCanary(vip, add)
	}
	elected := elect(m, vip, frontends, node)
	selected, decision := peersOf(m, vip)
	if elected.selected && decision.Reason == ReasonNoPeer {
		decision = Decision{}
	}
	if open, found := d.overpermissive[vip.Address]; found && decision.Reason == "" {
		decision = Decision{Reason: ReasonNotProgrammed, Message: fmt.Sprintf(
			"%s admits clients outside its source ranges and could not be closed", open)}
	}
	if decision.Reason == "" {
		decision = refuse(m, frontends, selected, node, &elected)
	}
	leaving := m.CutOff
	if decision.Reason == "" {
		var given bool
		decision, given = releaseVIP(vip)
		leaving = leaving || given
	}
	if decision.Reason == "" {
		var departs bool
		decision, departs = drain(m, frontends, node)
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
		decision = elected.applyTo(decision, m.Self.ID)
	}
	decision.Elsewhere = elected.isElsewhere(m.Self.ID)
	decision.VIP = vip.Address
	return decision
}

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

// overpermissiveFrontends returns the first frontend per VIP that admits sources outside its Service's ranges.
func overpermissiveFrontends(node *Node) map[netip.Addr]forwarding.FrontendKey {
	exceeding := map[netip.Addr]forwarding.FrontendKey{}
	for key := range forwarding.Overpermissive(node.Programmed, node.Planned) {
		if first, found := exceeding[key.VIP]; !found || key.Compare(first) < 0 {
			exceeding[key.VIP] = key
		}
	}
	return exceeding
}

func routeOf(m *model.Model, node *Node, vip netip.Addr, target model.Target, frontends []*model.Frontend) Route {
	route := newRoute(target, m, vip)
	if target.Advertisement.Weighed {
		route.Weight = weight(m, frontends)
	}
	if prefix, aggregates := target.Advertisement.Aggregate(vip); aggregates && containsAggregate(node.Programmed, prefix) {
		route.Prefix = prefix
	}
	return route
}

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

// refuse returns the reason why the VIP must not be announced, or an empty decision.
func refuse(m *model.Model, frontends []*model.Frontend, selected []model.Target, node *Node, elected *election) Decision {
	vip := elected.vip
	if vip.Occupant != "" {
		return Decision{Reason: ReasonOccupied, Message: desired.OccupiedVIP(vip.Address, vip.Occupant)}
	}
	if decision, found := node.Duplicates[vip.Address]; found {
		return decision
	}
	if len(frontends) == 0 {
		return Decision{Reason: ReasonNoFrontend, Message: "no Service on the address owns a port that can be served"}
	}
	if uplink := withheld(selected, node); uplink != "" && !elected.selected {
		return Decision{Reason: ReasonNotAttached, Message: uplink}
	}
	if _, found := node.Programmed.VIPs[vip.Address]; !found {
		return Decision{Reason: ReasonNotProgrammed, Message: "the address is not in the maps"}
	}
	if missing := missing(frontends, node, node.Announced[vip.Address]); missing != nil {
		return Decision{Reason: ReasonNotProgrammed, Message: fmt.Sprintf("%s is not in the maps", missing.Key)}
	}
	if isUnserved(vip.Address, frontends, node) && !staysCutOff(m, vip.Address, frontends, node) && !elected.answersWhileTerminating(m, frontends) {
		return withoutEndpoints(frontends)
	}
	if !elected.selected && !slices.ContainsFunc(selected, func(target model.Target) bool { return nextHop(m, target.Peer, vip.Address).IsValid() }) {
		return Decision{Reason: ReasonNoNextHop, Message: fmt.Sprintf(
			"neither the LBNode of this node nor an interface to a router has an %s address", familyName(vip.Address))}
	}
	return Decision{}
}

// withheld returns why no peer may send packets for the VIP, or "" if at least one may.
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

func missing(frontends []*model.Frontend, node *Node, announced bool) *model.Frontend {
	serves := false
	var attracting *model.Frontend
	for _, frontend := range frontends {
		if !announced && isAwaited(frontend.Key, node) {
			return frontend
		}
		if acceptsConnections(frontend) {
			serves = serves || isProgrammed(frontend, node.Programmed)
			attracting = cmp.Or(attracting, frontend)
		}
	}
	if serves {
		return nil
	}
	return attracting
}

// isAwaited reports whether a frontend is not yet programmed as planned. Zones are ignored because they are
// removed only after the announcement.
func isAwaited(key forwarding.FrontendKey, node *Node) bool {
	planned, found := node.Planned.Frontends[key]
	if !found {
		return false
	}
	programmed, found := node.Programmed.Frontends[key]
	programmed.Zones, planned.Zones = [forwarding.Zones]forwarding.NodeTableSlot{}, [forwarding.Zones]forwarding.NodeTableSlot{}
	return !found || programmed != planned
}

// isProgrammed reports whether the maps contain a frontend that serves, possibly in part or with its
// previous traffic policy.
func isProgrammed(frontend *model.Frontend, programmed *forwarding.State) bool {
	entry, found := programmed.Frontends[frontend.Key]
	if !found || frontend.Restricted && !isRestricted(frontend, entry) {
		return false
	}
	return entry.Table != 0 || entry.Local && entry.Endpoints != 0
}

// isRestricted reports whether the entry drops sources outside the frontend's ranges. An entry that drops
// all sources counts only if the frontend admits none.
func isRestricted(frontend *model.Frontend, entry forwarding.Frontend) bool {
	return entry.Ranges != 0 && (entry.Ranges != forwarding.NoSources || len(frontend.Sources) == 0)
}

func acceptsConnections(frontend *model.Frontend) bool {
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

// weight returns the total weight of this node's endpoints of Local frontends.
func weight(m *model.Model, frontends []*model.Frontend) uint32 {
	sum := uint32(0)
	for _, frontend := range frontends {
		if frontend.Local && acceptsConnections(frontend) {
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
