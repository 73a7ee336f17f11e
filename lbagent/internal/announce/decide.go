// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// Reasons of Decisions, in the order in which they are looked for.
const (
	// ReasonNoService: no Service has the VIP; it is reserved.
	ReasonNoService = "NoService"
	// ReasonNotSelected: no advertisement that selects this node selects the
	// VIP.
	ReasonNotSelected = "NotSelected"
	// ReasonNoPeer: this node has none of the peers that the VIP is to be
	// announced to, or none with the VIP's address family.
	ReasonNoPeer = "NoPeer"
	// ReasonNoFrontend: no Service on the VIP has a port that can be served.
	ReasonNoFrontend = "NoFrontend"
	// ReasonNotAttached: not every uplink of the node has the programs.
	ReasonNotAttached = "NotAttached"
	// ReasonNotProgrammed: the maps do not hold all frontends of the VIP.
	ReasonNotProgrammed = "NotProgrammed"
	// ReasonNoEndpoints: no Service on the VIP has an endpoint.
	ReasonNoEndpoints = "NoEndpoints"
	// ReasonNoLocalEndpoint: externalTrafficPolicy is Local and no endpoint on
	// this node is ready.
	ReasonNoLocalEndpoint = "NoLocalEndpoint"
	// ReasonNoNextHop: the node has no address of the VIP's family.
	ReasonNoNextHop = "NoNextHop"
)

// Decide returns the routes that this node announces and, for each VIP in the
// order of addresses, where it is announced to or why it is not. programmed is
// what the maps hold, attached whether every uplink has the programs.
//
// A VIP is announced when all its frontends are programmed, with the tables
// that they need, and any of them has a usable endpoint: anywhere for
// externalTrafficPolicy Cluster, a ready one on this node for Local, so that a
// node whose endpoints all terminate drains (KEP-1669). Where that is a Local
// one, packets to the VIP's other Local frontends are sent on to nodes that have
// their endpoints.
func Decide(m *model.Model, programmed *program.State, attached bool) (Routes, []Decision) {
	frontends := map[netip.Addr][]*model.Frontend{}
	for i := range m.Frontends {
		vip := m.Frontends[i].Key.VIP
		frontends[vip] = append(frontends[vip], &m.Frontends[i])
	}
	routes := Routes{}
	decisions := make([]Decision, 0, len(m.VIPs))
	for i := range m.VIPs {
		vip := &m.VIPs[i]
		selected, decision := peersOf(m, vip)
		if decision.Reason == "" {
			decision = refuse(m, vip, frontends[vip.Address], programmed, attached)
		}
		if decision.Reason == "" {
			for _, target := range selected {
				routes[target.peer.Name] = append(routes[target.peer.Name], target.route(m, vip.Address))
				decision.Peers = append(decision.Peers, target.peer.Name)
			}
		}
		decision.VIP = vip.Address
		decisions = append(decisions, decision)
	}
	return routes, decisions
}

// target is a peer with the advertisement that gives the route its attributes.
type target struct {
	peer          *model.Peer
	advertisement *model.Advertisement
}

// peersOf returns the peers that the VIP is to be announced to, in the order of
// their names; without any, the decision says why.
func peersOf(m *model.Model, vip *model.VIP) ([]target, Decision) {
	if len(vip.Services) == 0 {
		return nil, Decision{Reason: ReasonNoService, Message: "no Service has the address"}
	}
	var selecting []*model.Advertisement
	for i := range m.Advertisements {
		if selectsVIP(&m.Advertisements[i], vip) {
			selecting = append(selecting, &m.Advertisements[i])
		}
	}
	if len(selecting) == 0 {
		return nil, Decision{Reason: ReasonNotSelected, Message: "no BGPAdvertisement selects the address on this node"}
	}
	var targets []target
	for i := range m.Peers {
		peer := &m.Peers[i]
		if vip.Address.Is4() && !peer.IPv4 || vip.Address.Is6() && !peer.IPv6 {
			continue
		}
		// Advertisements are sorted by name: the first decides.
		for _, advertisement := range selecting {
			if len(advertisement.Peers) == 0 || slices.Contains(advertisement.Peers, peer.Name) {
				targets = append(targets, target{peer: peer, advertisement: advertisement})
				break
			}
		}
	}
	if len(targets) == 0 {
		return nil, Decision{Reason: ReasonNoPeer, Message: fmt.Sprintf(
			"no BGPPeer of this node is both selected and for %s", familyName(vip.Address))}
	}
	return targets, Decision{}
}

func selectsVIP(advertisement *model.Advertisement, vip *model.VIP) bool {
	if len(advertisement.Pools) > 0 && !slices.Contains(advertisement.Pools, vip.Pool) {
		return false
	}
	return advertisement.Selects == nil || slices.ContainsFunc(vip.Services, func(service model.VIPService) bool {
		return advertisement.Selects(service.Labels)
	})
}

// refuse returns why this node must not announce a VIP to anybody; a decision
// without a reason where it may.
func refuse(
	m *model.Model, vip *model.VIP, frontends []*model.Frontend, programmed *program.State, attached bool,
) Decision {
	if len(frontends) == 0 {
		return Decision{Reason: ReasonNoFrontend, Message: "no Service on the address has a port of its own that can be served"}
	}
	if !attached {
		return Decision{Reason: ReasonNotAttached, Message: "an uplink of the node is without the programs"}
	}
	if _, found := programmed.VIPs[vip.Address]; !found {
		return Decision{Reason: ReasonNotProgrammed, Message: "the address is not in the maps"}
	}
	for _, frontend := range frontends {
		if !isProgrammed(frontend, programmed) {
			return Decision{Reason: ReasonNotProgrammed, Message: fmt.Sprintf("%s is not in the maps", frontend.Key)}
		}
	}
	if !slices.ContainsFunc(frontends, attracts) {
		return withoutEndpoints(frontends)
	}
	if !nextHop(m.Self, vip.Address).IsValid() {
		return Decision{Reason: ReasonNoNextHop, Message: fmt.Sprintf(
			"the LBNode of this node has no %s address", familyName(vip.Address))}
	}
	return Decision{}
}

// isProgrammed tells whether the maps hold the frontend with the tables that
// its endpoints ask for.
func isProgrammed(frontend *model.Frontend, programmed *program.State) bool {
	entry, found := programmed.Frontends[frontend.Key]
	if !found || entry.Local != frontend.Local {
		return false
	}
	if frontend.Restricted && !isRestricted(frontend, entry) {
		return false
	}
	if frontend.Spreads() && len(frontend.Weights) > 0 && entry.Table == 0 {
		return false
	}
	return len(frontend.Endpoints) == 0 || entry.Endpoints != 0
}

// isRestricted tells whether the entry keeps out whom the frontend does not
// admit, and only where the frontend admits nobody all of them.
func isRestricted(frontend *model.Frontend, entry program.Frontend) bool {
	return entry.Ranges != 0 && (entry.Ranges != program.Nobody || len(frontend.Sources) == 0)
}

// attracts tells whether the frontend has what new connections need.
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

func (t target) route(m *model.Model, vip netip.Addr) Route {
	route := Route{
		Prefix:           netip.PrefixFrom(vip, vip.BitLen()),
		NextHop:          nextHop(m.Self, vip),
		Communities:      t.advertisement.Communities,
		LargeCommunities: t.advertisement.LargeCommunities,
	}
	if t.peer.ASN == t.peer.LocalASN {
		route.LocalPreference = t.advertisement.LocalPreference
	}
	return route
}

func nextHop(self program.Self, vip netip.Addr) netip.Addr {
	if vip.Is4() {
		return self.IPv4
	}
	return self.IPv6
}

func familyName(address netip.Addr) string {
	if address.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
