// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"iter"
	"maps"
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
	// Aggregate is that of the VIP, where the other advertisement is not for the VIP itself but
	// for others of its aggregate.
	Aggregate netip.Prefix
}

// Conflicts returns, by the name of the advertisement that yields, the conflicts of each with
// those before it: about a VIP that both select, and about VIPs of one aggregate. Of the two, the
// former is told first. Only valid advertisements and peers belong here, both sorted by name. A
// VIP counts once for each advertisement that yields.
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
	shared := sharedAggregates{}
	for vip := range vips {
		counted := map[string]bool{}
		for i := range pairs {
			pair := &pairs[i]
			peer := pair.peer(vip.Address)
			if peer == "" || counted[pair.yields.Name] ||
				!pair.decides.Selects(vip.Pool, vip.Services) || !pair.yields.Selects(vip.Pool, vip.Services) {
				continue
			}
			counted[pair.yields.Name] = true
			conflict, found := conflicts[pair.yields.Name]
			if !found {
				conflict = Conflict{By: pair.decides.Name, Peer: peer, VIP: vip.Address}
			}
			conflict.VIPs++
			conflicts[pair.yields.Name] = conflict
		}
		for i := range pairs {
			shared.add(&pairs[i], &vip, counted)
		}
	}
	shared.addTo(conflicts)
	return conflicts
}

// sharedAggregate is an aggregate by which an advertisement announces VIPs.
type sharedAggregate struct {
	yields string
	prefix netip.Prefix
}

// sharing is what is known of such an aggregate.
type sharing struct {
	// by is the first pair by name whose other advertisement announces VIPs by the aggregate too;
	// nil without one.
	by *rivalry
	// vips are those that the advertisement that yields is alone to select.
	vips []netip.Addr
}

type sharedAggregates map[sharedAggregate]*sharing

// add takes a VIP for a pair. An advertisement that is overruled for the VIP announces it by no
// aggregate.
func (s sharedAggregates) add(pair *rivalry, vip *AdvertisedVIP, overruled map[string]bool) {
	if pair.peer(vip.Address) == "" {
		return
	}
	for _, advertisement := range []*Advertisement{pair.decides, pair.yields} {
		prefix, aggregates := advertisement.Aggregate(vip.Address)
		if !aggregates || overruled[advertisement.Name] || !advertisement.Selects(vip.Pool, vip.Services) {
			continue
		}
		key := sharedAggregate{pair.yields.Name, prefix}
		have := s[key]
		if have == nil {
			have = &sharing{}
			s[key] = have
		}
		switch {
		case advertisement == pair.decides:
			if have.by == nil || pair.decides.Name < have.by.decides.Name {
				have.by = pair
			}
		case len(have.vips) == 0 || have.vips[len(have.vips)-1] != vip.Address:
			// Of several pairs the VIP is the last one.
			have.vips = append(have.vips, vip.Address)
		}
	}
}

// addTo adds the conflicts about VIPs of one aggregate.
func (s sharedAggregates) addTo(conflicts map[string]Conflict) {
	keys := slices.SortedFunc(maps.Keys(s), func(a, b sharedAggregate) int { return a.prefix.Compare(b.prefix) })
	for _, key := range keys {
		shared := s[key]
		if shared.by == nil || len(shared.vips) == 0 {
			continue
		}
		conflict, found := conflicts[key.yields]
		if !found {
			first := shared.vips[0]
			conflict = Conflict{By: shared.by.decides.Name, Peer: shared.by.peer(first), VIP: first, Aggregate: key.prefix}
		}
		conflict.VIPs += len(shared.vips)
		conflicts[key.yields] = conflict
	}
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
