// SPDX-License-Identifier: Apache-2.0

package review

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Advertisement returns warnings about an advertisement, including references to objects that do not exist.
func Advertisement(object *millracev1beta1.VIPAdvertisement, state *State) []desired.Problem {
	problems := desired.Advertisements([]millracev1beta1.VIPAdvertisement{*object}, state.Pools, state.Peers)
	advertisement, invalid := desired.ParseAdvertisement(object)
	if len(invalid) > 0 {
		return problems
	}
	w := warnings{object: desired.Object{Kind: "VIPAdvertisement", Name: object.Name}, state: state, found: problems}
	w.reaches(&advertisement)
	w.aggregates(&advertisement)
	if object.Spec.L2 != nil {
		for i, name := range object.Spec.L2.Interfaces {
			w.interfaces(fmt.Sprintf("spec.l2.interfaces[%d]", i), name)
		}
	}
	return w.found
}

// reaches warns about an advertisement without nodes or sessions, and attributes that its sessions do not carry.
func (w *warnings) reaches(advertisement *desired.Advertisement) {
	if !w.state.anyNode(advertisement.Nodes) {
		w.warn(ReasonNoMatch, "spec.nodeSelector", "selects no Node, so nothing is announced by it")
		return
	}
	if advertisement.L2 {
		return
	}
	peers := peersOf(advertisement, valid(w.state.Peers, desired.ParsePeer))
	external := func(peer desired.Peer) bool { return peer.External() }
	internal := func(peer desired.Peer) bool { return !peer.External() }
	reached := func(peer desired.Peer) bool { return w.state.anyNode(advertisement.Nodes, peer.Nodes) }
	switch {
	case len(peers) == 0 && len(w.state.Peers) > 0 && len(advertisement.Peers) > 0:
		// The missing names are reported.
	case len(peers) == 0:
		w.warn(ReasonNoMatch, "spec.peers", "there is no valid LBPeer to announce anything to: create one")
	case !slices.ContainsFunc(peers, reached):
		w.warn(ReasonNoMatch, "spec.peers", "no node of the advertisement has a session with one of its LBPeers, so nothing is announced by it")
	case advertisement.LocalPreference != nil && !slices.ContainsFunc(peers, internal):
		w.warn(ReasonNoEffect, "spec.localPreference", "only internal sessions carry it, and those of LBPeer %s are external: "+
			"use med, asPathPrepend or communities, or remove it", names(peers))
	case advertisement.Prepend > 0 && !slices.ContainsFunc(peers, external):
		w.warn(ReasonNoEffect, "spec.asPathPrepend", "only external sessions carry it, and those of LBPeer %s are internal: "+
			"use localPreference, or remove it", names(peers))
	}
}

func peersOf(advertisement *desired.Advertisement, peers []desired.Peer) (selected []desired.Peer) {
	for _, peer := range peers {
		if len(advertisement.Peers) == 0 || slices.Contains(advertisement.Peers, peer.Name) {
			selected = append(selected, peer)
		}
	}
	return selected
}

// aggregates warns about aggregates with addresses outside of the pools, and those of a family without addresses.
func (w *warnings) aggregates(advertisement *desired.Advertisement) {
	var builder netipx.IPSetBuilder
	for i := range w.state.Pools {
		spec := &w.state.Pools[i].Spec
		if len(advertisement.Pools) > 0 && !slices.Contains(advertisement.Pools, w.state.Pools[i].Name) {
			continue
		}
		for _, text := range spec.Addresses {
			if r, err := desired.ParseRange(text); err == nil {
				builder.AddRange(r)
			}
		}
	}
	addresses, err := builder.IPSet()
	if err != nil || len(addresses.Ranges()) == 0 {
		return
	}
	for _, family := range []struct {
		field  string
		length int
		is     func(netip.Addr) bool
		name   millracev1beta1.AddressFamily
	}{
		{"spec.aggregationLength", advertisement.Length4, netip.Addr.Is4, millracev1beta1.FamilyIPv4},
		{"spec.aggregationLengthV6", advertisement.Length6, netip.Addr.Is6, millracev1beta1.FamilyIPv6},
	} {
		ranges := slices.DeleteFunc(addresses.Ranges(), func(r netipx.IPRange) bool { return !family.is(r.From()) })
		if family.length == 0 {
			continue
		}
		if len(ranges) == 0 {
			w.warn(ReasonNoEffect, family.field, "the pools of the advertisement have no %s addresses: remove it", family.name)
		}
		for _, end := range ends(ranges) {
			if prefix, _ := advertisement.Aggregate(end); !addresses.ContainsPrefix(prefix) {
				w.warn(ReasonNoEffect, family.field, "%s also has addresses outside of the pools, whose packets routers would send to the nodes, "+
					"which drop them: use a longer prefix, or add the addresses to a pool", prefix)
				break
			}
		}
	}
}

func ends(ranges []netipx.IPRange) (addresses []netip.Addr) {
	for _, r := range ranges {
		addresses = append(addresses, r.From(), r.To())
	}
	return addresses
}
