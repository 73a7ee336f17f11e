// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
)

// isForThisNode reports whether a node selector matches this node. A nil selector, from an invalid object,
// matches every node, so that each reports the error.
func (b *builder) isForThisNode(selector labels.Selector) bool {
	var own labels.Set
	if b.snapshot.Node != nil {
		own = b.snapshot.Node.Labels
	}
	return selector == nil || selector.Matches(own)
}

func (b *builder) buildPeers() {
	taken := map[netip.AddrPort]string{}
	var ranges []desired.Peer
	b.model.BFD = map[string]desired.BFD{}
	b.model.NextHops = map[string]NextHops{}
	for _, object := range oldestFirst(b.snapshot.Peers) {
		peer, problems := desired.ParsePeer(object)
		if !b.isForThisNode(peer.Nodes) || b.reported(problems) || !b.resolveRouter(&peer) {
			continue
		}
		if peer.Range.IsValid() {
			ranges = append(ranges, peer)
			continue
		}
		if older, found := taken[peer.Socket()]; found {
			b.problem(ObjectReference{Kind: "LBPeer", Name: object.Name}, ReasonDuplicate,
				"%s: %s is already the peer of this node by LBPeer %s, which is older", routerField(&peer), peer.Socket(), older)
			continue
		}
		taken[peer.Socket()] = peer.Name
		b.addPeer(&peer)
	}
	b.buildRanges(ranges)
	slices.SortFunc(b.model.Peers, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
}

func (b *builder) addPeer(peer *desired.Peer) {
	b.model.Peers = append(b.model.Peers, peer.Session)
	b.model.NextHops[peer.Name] = nextHops(&peer.Session, b.model.Self, b.snapshot.OnLink)
	if peer.BFD.Enabled {
		b.model.BFD[peer.Name] = peer.BFD
	}
}

func routerField(peer *desired.Peer) string {
	switch {
	case peer.Gateway != "":
		return "spec.router.gateway"
	case peer.Interface != "":
		return "spec.router.interface"
	}
	return "spec.router.address"
}

// buildRanges creates a peer for each connected router of a range, unless another LBPeer has that address. Of
// two overlapping ranges, the older one applies.
func (b *builder) buildRanges(ranges []desired.Peer) {
	configured := map[netip.Addr]bool{}
	for i := range b.model.Peers {
		configured[b.model.Peers[i].Address] = true
	}
	for i := range ranges {
		peer := &ranges[i]
		older := slices.IndexFunc(b.model.Ranges, func(r Range) bool { return r.Prefix.Overlaps(peer.Range) })
		if older >= 0 {
			b.problem(ObjectReference{Kind: "LBPeer", Name: peer.Name}, ReasonDuplicate,
				"spec.router.range: %s overlaps that of LBPeer %s, which is older", peer.Range, b.model.Ranges[older].Name)
			continue
		}
		b.model.Ranges = append(b.model.Ranges, Range{
			Name: peer.Name, Prefix: peer.Range, MaxSessions: peer.MaxPeers, Session: peer.Session,
		})
		for _, router := range b.snapshot.DynamicNeighbors {
			if !peer.Range.Contains(router) || configured[router] {
				continue
			}
			one := *peer
			one.Name, one.OfRange, one.Address = peer.Name+"/"+router.String(), peer.Name, router
			b.addPeer(&one)
		}
	}
}

// RouterInterfaces returns the interfaces of LBPeers of this node whose router is found by its advertisements.
func RouterInterfaces(s *Snapshot) (names []string) {
	b := builder{snapshot: s}
	for _, object := range s.Peers {
		if object.Spec.Router.Interface == "" {
			continue
		}
		peer, problems := desired.ParsePeer(object)
		if len(problems) == 0 && peer.Interface != "" && b.isForThisNode(peer.Nodes) {
			names = append(names, peer.Interface)
		}
	}
	return names
}

// resolveRouter sets the address of a router that is a gateway or on an interface. It reports whether the peer has
// an address.
func (b *builder) resolveRouter(peer *desired.Peer) bool {
	switch {
	case peer.Gateway != "":
		return b.resolveGateway(peer)
	case peer.Interface != "":
		return b.resolveInterface(peer)
	}
	return true
}

func (b *builder) resolveInterface(peer *desired.Peer) bool {
	router, exists := b.snapshot.Routers[peer.Interface]
	message := "no router has sent a router advertisement on %s yet"
	switch {
	case router.IsValid():
		peer.Address = router
		return true
	case !exists:
		message = "this node has no interface %s"
	}
	b.problem(ObjectReference{Kind: "LBPeer", Name: peer.Name}, ReasonNoRouter, "spec.router.interface: "+message, peer.Interface)
	return false
}

func (b *builder) resolveGateway(peer *desired.Peer) bool {
	reference := ObjectReference{Kind: "LBPeer", Name: peer.Name}
	switch gateways := b.snapshot.Gateways[peer.Gateway]; len(gateways) {
	case 1:
		peer.Address = gateways[0]
		return true
	case 0:
		b.problem(reference, ReasonNoGateway, "spec.router.gateway: this node has no %s default route with a gateway", peer.Gateway)
	default:
		b.problem(reference, ReasonNoGateway, "spec.router.gateway: the %s default route of this node has the gateways %v: "+
			"write an LBPeer with the address of each", peer.Gateway, gateways)
	}
	return false
}

func (b *builder) buildAdvertisements() {
	var all []Advertisement
	for _, object := range oldestFirst(b.snapshot.Advertisements) {
		advertisement, problems := desired.ParseAdvertisement(object)
		if len(problems) == 0 {
			all = append(all, advertisement)
			if advertisement.L2 {
				b.model.L2 = append(b.model.L2, advertisement)
			}
		}
		if !b.isForThisNode(advertisement.Nodes) || b.reported(problems) {
			continue
		}
		b.model.Advertisements = append(b.model.Advertisements, advertisement)
	}
	byName := func(a, b Advertisement) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(b.model.Advertisements, byName)
	slices.SortFunc(b.model.L2, byName)
	b.spreadAggregated(all)
}
