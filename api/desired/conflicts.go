// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"iter"
	"net/netip"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// AdvertisedVIP is what selects a VIP for advertisements.
type AdvertisedVIP struct {
	Address netip.Addr
	Pool    string
	// Services are the labels of each Service that has the address.
	Services []labels.Set
}

// Conflict tells of VIPs that two advertisements select for one peer and one node, with
// different attributes.
type Conflict struct {
	// By is the advertisement that decides the attributes: the first by name that selects the
	// VIP.
	By string
	// Peer and VIP are the first ones by name and in the order of the VIPs. VIPs is how many
	// there are.
	Peer string
	VIP  netip.Addr
	VIPs int
}

// Conflicts returns, by the name of the advertisement that yields, the conflicts of each with
// those before it. Only valid advertisements and peers belong here, both sorted by name. A VIP
// counts once for each advertisement that yields.
func Conflicts(
	advertisements []Advertisement,
	peers []Peer,
	nodes []labels.Set,
	vips iter.Seq[AdvertisedVIP],
) map[string]Conflict {
	pairs := rivals(advertisements, peers, nodes)
	conflicts := map[string]Conflict{}
	if len(pairs) == 0 {
		return conflicts
	}
	for vip := range vips {
		counted := ""
		for i := range pairs {
			pair := &pairs[i]
			peer := pair.peer(vip.Address)
			if peer == "" || pair.yields.Name == counted ||
				!pair.decides.Selects(vip.Pool, vip.Services) || !pair.yields.Selects(vip.Pool, vip.Services) {
				continue
			}
			counted = pair.yields.Name
			conflict, found := conflicts[counted]
			if !found {
				conflict = Conflict{By: pair.decides.Name, Peer: peer, VIP: vip.Address}
			}
			conflict.VIPs++
			conflicts[counted] = conflict
		}
	}
	return conflicts
}

// rivalry is of two advertisements that say different things to a common peer of a common
// node. The peers are the first by name of each family; empty where there is none.
type rivalry struct {
	decides, yields *Advertisement
	ipv4, ipv6      string
}

func (r *rivalry) peer(vip netip.Addr) string {
	if vip.Is4() {
		return r.ipv4
	}
	return r.ipv6
}

// rivals returns all pairs, those that yield in the order of their names.
func rivals(advertisements []Advertisement, peers []Peer, nodes []labels.Set) []rivalry {
	var pairs []rivalry
	for j := range advertisements {
		for i := range advertisements[:j] {
			pair := rivalry{decides: &advertisements[i], yields: &advertisements[j]}
			if sameAttributes(pair.decides, pair.yields) {
				continue
			}
			for k := range peers {
				pair.add(&peers[k], nodes)
			}
			if pair.ipv4 != "" || pair.ipv6 != "" {
				pairs = append(pairs, pair)
			}
		}
	}
	return pairs
}

// add takes a peer that both advertisements are for, on a node that all three select.
func (r *rivalry) add(peer *Peer, nodes []labels.Set) {
	if !r.decides.isFor(peer.Name) || !r.yields.isFor(peer.Name) ||
		!slices.ContainsFunc(nodes, func(node labels.Set) bool {
			return peer.Nodes.Matches(node) && r.decides.Nodes.Matches(node) && r.yields.Nodes.Matches(node)
		}) {
		return
	}
	if peer.IPv4 {
		r.ipv4 = cmp.Or(r.ipv4, peer.Name)
	}
	if peer.IPv6 {
		r.ipv6 = cmp.Or(r.ipv6, peer.Name)
	}
}

func (a *Advertisement) isFor(peer string) bool {
	return len(a.Peers) == 0 || slices.Contains(a.Peers, peer)
}

// sameAttributes reports whether routes are alike by either of two advertisements.
func sameAttributes(a, b *Advertisement) bool {
	attributes := func(a *Advertisement) Advertisement {
		return Advertisement{
			Communities: a.Communities, LargeCommunities: a.LargeCommunities, ExtendedCommunities: a.ExtendedCommunities,
			LocalPreference: a.LocalPreference, MED: a.MED, Prepend: a.Prepend, Weighed: a.Weighed,
			Length4: a.Length4, Length6: a.Length6,
		}
	}
	return reflect.DeepEqual(attributes(a), attributes(b))
}
