// SPDX-License-Identifier: Apache-2.0

package review

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Families returns a warning for each family of the pools of an advertisement that no peer would announce.
func Families(object *millracev1beta1.VIPAdvertisement, state *State) (warnings []string) {
	others := slices.DeleteFunc(slices.Clone(state.Advertisements), func(other millracev1beta1.VIPAdvertisement) bool {
		return other.Name == object.Name
	})
	all, peers := valid(append(others, *object), desired.ParseAdvertisement), valid(state.Peers, desired.ParsePeer)
	pools, _ := desired.Pools(state.Pools, desired.NewOccupation(state.Occupied))
	for i := range pools {
		if len(object.Spec.Pools) == 0 || slices.Contains(object.Spec.Pools, pools[i].Name) {
			warnings = append(warnings, prefixed("spec.pools", unannouncedFamilies(&pools[i], all, peers))...)
		}
	}
	return warnings
}

// unannouncedFamilies returns a message for each family of the pool that no peer announces. Missing
// advertisements and peers are reported elsewhere.
func unannouncedFamilies(pool *desired.Pool, advertisements []desired.Advertisement, peers []desired.Peer) (messages []string) {
	var selected []desired.Peer
	for i := range advertisements {
		advertisement := &advertisements[i]
		switch {
		case len(advertisement.Pools) > 0 && !slices.Contains(advertisement.Pools, pool.Name):
		case advertisement.L2:
			return nil
		default:
			for _, peer := range peers {
				if len(advertisement.Peers) == 0 || slices.Contains(advertisement.Peers, peer.Name) {
					selected = append(selected, peer)
				}
			}
		}
	}
	if len(selected) == 0 {
		return nil
	}
	for _, family := range []struct {
		name      millracev1beta1.AddressFamily
		has       func(netip.Addr) bool
		announced func(desired.Peer) bool
	}{
		{millracev1beta1.FamilyIPv4, netip.Addr.Is4, func(peer desired.Peer) bool { return peer.IPv4 }},
		{millracev1beta1.FamilyIPv6, netip.Addr.Is6, func(peer desired.Peer) bool { return peer.IPv6 }},
	} {
		has := slices.ContainsFunc(pool.Addresses.Ranges(), func(r netipx.IPRange) bool { return family.has(r.From()) })
		if has && !slices.ContainsFunc(selected, family.announced) {
			messages = append(messages, fmt.Sprintf("no LBPeer of the VIPAdvertisements of VIPPool %q announces %s, so no node announces its "+
				"%s addresses: add %s to spec.families of LBPeer %s, or remove the addresses", pool.Name, family.name, family.name, family.name, names(selected)))
		}
	}
	return messages
}

func names(peers []desired.Peer) string {
	var found []string
	for i := range peers {
		found = append(found, fmt.Sprintf("%q", peers[i].Name))
	}
	slices.Sort(found)
	return strings.Join(slices.Compact(found), ", ")
}

func prefixed(field string, messages []string) (texts []string) {
	for _, message := range messages {
		texts = append(texts, field+": "+message)
	}
	return texts
}
