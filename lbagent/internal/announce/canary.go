// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// decideCanary announces a canary only to its own LBPeer and with the attributes of VIP routes, so that the
// router applies the same policy. A draining or cut-off node withdraws it.
func (d *evaluator) decideCanary(vip *model.VIP, add func(target model.Target, route Route, leaving bool)) Decision {
	decision := Decision{VIP: vip.Address}
	_, programmed := d.node.Programmed.VIPs[vip.Address]
	switch duplicate, found := d.node.Duplicates[vip.Address]; {
	case found:
		duplicate.VIP = vip.Address
		return duplicate
	case !programmed:
		decision.Reason, decision.Message = ReasonNotProgrammed, "the canary is not in the maps"
		return decision
	case d.node.Phase != Active || d.node.Final || d.model.CutOff:
		decision.Reason, decision.Message = ReasonNodeDraining, "the node is draining"
		return decision
	}
	for i := range d.model.Peers {
		peer := &d.model.Peers[i]
		if peer.Object() != vip.Canary || !supportsFamily(peer, vip.Address) {
			continue
		}
		if reason, unattached := d.node.Unattached[peer.Name]; unattached {
			decision.Reason, decision.Message = ReasonNotAttached, fmt.Sprintf("LBPeer %s: %s", peer.Name, reason)
			continue
		}
		if d.addCanary(vip, peer, add) {
			decision.Peers = append(decision.Peers, peer.Name)
		}
	}
	if len(decision.Peers) > 0 {
		decision.Reason, decision.Message = "", ""
	} else if decision.Reason == "" {
		decision.Reason = ReasonNoPeer
		decision.Message = "no VIPAdvertisement selects the LBPeer of the canary, or it has no session or next hop"
	}
	return decision
}

func supportsFamily(peer *model.Peer, address netip.Addr) bool {
	if address.Is4() {
		return peer.IPv4
	}
	return peer.IPv6
}

// addCanary adds the canary's route to the peer and reports whether the peer has an advertisement and a
// next hop.
func (d *evaluator) addCanary(vip *model.VIP, peer *model.Peer, add func(target model.Target, route Route, leaving bool)) bool {
	advertisement := d.model.AdvertisementTo(peer)
	if advertisement == nil {
		return false
	}
	target := model.Target{Peer: peer, Advertisement: advertisement}
	route := newRoute(target, d.model, vip.Address)
	if route.NextHop.IsValid() {
		add(target, route, false)
	}
	return route.NextHop.IsValid()
}
