// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"
)

// AdvertisedVIP contains the attributes of a VIP that advertisements can select.
type AdvertisedVIP struct {
	Address  netip.Addr
	Pool     string
	Services []labels.Set
}

// Conflict represents VIPs that two advertisements announce to the same peer with different attributes.
type Conflict struct {
	// By is the name of the advertisement whose attributes apply: the first by name that selects the VIP.
	By string
	// Peer is the first affected peer by name, and VIP the first affected VIP in the order of the VIPs. VIPs
	// is the number of affected VIPs.
	Peer string
	VIP  netip.Addr
	VIPs int
	// Aggregate is valid if the advertisements conflict only because By selects other VIPs of the same
	// aggregate.
	Aggregate netip.Prefix
}

// Message returns a sentence for the condition Conflicted.
func (c Conflict) Message() string {
	subject, reason := c.VIP.String()+" is", "which also selects it"
	if c.VIPs > 1 {
		subject, reason = fmt.Sprintf("%s and %d more VIPs are", c.VIP, c.VIPs-1), "which also selects them"
	}
	if c.Aggregate.IsValid() {
		reason = fmt.Sprintf("which selects other VIPs of its aggregate %s", c.Aggregate)
	}
	return fmt.Sprintf("%s announced to LBPeer %s with the attributes of VIPAdvertisement %s, %s and is the first by name",
		subject, c.Peer, c.By, reason)
}

// Conflicts returns, by name, the first conflict of each advertisement with an earlier one: both select the
// same VIP, or VIPs of the same aggregate. The advertisements and peers must be valid and sorted by name. A
// VIP is counted once for each overruled advertisement.
func Conflicts(
	advertisements []Advertisement,
	peers []Peer,
	nodes []labels.Set,
	vips iter.Seq[AdvertisedVIP],
) map[string]Conflict {
	pairs := conflictingPairs(advertisements, peers, nodes)
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

type sharedAggregate struct {
	yields string
	prefix netip.Prefix
}

type aggregateUse struct {
	// by is the pair with the first advertisement by name that uses the same aggregate, or nil.
	by *advertisementPair
	// vips are the VIPs of the aggregate that only the overruled advertisement selects.
	vips []netip.Addr
}

type sharedAggregates map[sharedAggregate]*aggregateUse

// add records the aggregates by which the pair announces a VIP. It ignores an advertisement that is overruled
// for the VIP, because its aggregate does not announce it.
func (s sharedAggregates) add(pair *advertisementPair, vip *AdvertisedVIP, overruled map[string]bool) {
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
			have = &aggregateUse{}
			s[key] = have
		}
		switch {
		case advertisement == pair.decides:
			if have.by == nil || pair.decides.Name < have.by.decides.Name {
				have.by = pair
			}
		case len(have.vips) == 0 || have.vips[len(have.vips)-1] != vip.Address:
			// If several pairs add the VIP, it is already the last one.
			have.vips = append(have.vips, vip.Address)
		}
	}
}

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

// advertisementPair is a pair of advertisements with different attributes for a common peer of a common node.
// ipv4 and ipv6 are the first such peers of each family.
type advertisementPair struct {
	decides, yields *Advertisement
	ipv4, ipv6      string
}

func (r *advertisementPair) peer(vip netip.Addr) string {
	if vip.Is4() {
		return r.ipv4
	}
	return r.ipv6
}

// conflictingPairs returns pairs sorted by the name of the overruled advertisement. Each selector is
// evaluated once per node; the resulting sets of nodes are then compared.
func conflictingPairs(advertisements []Advertisement, peers []Peer, nodes []labels.Set) []advertisementPair {
	selected := selections{nodes: nodes, known: map[string]nodeSet{}}
	ofAdvertisements, ofPeers := make([]nodeSet, len(advertisements)), make([]nodeSet, len(peers))
	for i := range advertisements {
		ofAdvertisements[i] = selected.nodesOf(advertisements[i].Nodes)
	}
	for k := range peers {
		ofPeers[k] = selected.nodesOf(peers[k].Nodes)
	}
	classes := attributeClasses(advertisements)
	var pairs []advertisementPair
	both := make(nodeSet, words(len(nodes)))
	for j := range advertisements {
		for i := range advertisements[:j] {
			if advertisements[i].L2 || advertisements[j].L2 || classes[i] == classes[j] || !both.intersect(ofAdvertisements[i], ofAdvertisements[j]) {
				continue
			}
			pair := advertisementPair{decides: &advertisements[i], yields: &advertisements[j]}
			for k := range peers {
				if !pair.complete(&peers[k]) && both.intersects(ofPeers[k]) {
					pair.add(&peers[k])
				}
			}
			if pair.ipv4 != "" || pair.ipv6 != "" {
				pairs = append(pairs, pair)
			}
		}
	}
	return pairs
}

// complete reports whether the peer's families already have a peer in the pair, or one of the advertisements
// does not select the peer.
func (r *advertisementPair) complete(peer *Peer) bool {
	return (r.ipv4 != "" || !peer.IPv4) && (r.ipv6 != "" || !peer.IPv6) ||
		!r.decides.isFor(peer.Name) || !r.yields.isFor(peer.Name)
}

func (r *advertisementPair) add(peer *Peer) {
	if peer.IPv4 {
		r.ipv4 = cmp.Or(r.ipv4, peer.Name)
	}
	if peer.IPv6 {
		r.ipv6 = cmp.Or(r.ipv6, peer.Name)
	}
}

type nodeSet []uint64

func words(nodes int) int { return (nodes + 63) / 64 }

func (s nodeSet) intersect(a, b nodeSet) bool {
	var all uint64
	for i := range s {
		s[i] = a[i] & b[i]
		all |= s[i]
	}
	return all != 0
}

func (s nodeSet) intersects(other nodeSet) bool {
	for i := range s {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}

type selections struct {
	nodes []labels.Set
	known map[string]nodeSet
}

func (s *selections) nodesOf(selector labels.Selector) nodeSet {
	key := selector.String()
	set, ok := s.known[key]
	if !ok {
		set = make(nodeSet, words(len(s.nodes)))
		for i, node := range s.nodes {
			if selector.Matches(node) {
				set[i/64] |= 1 << (i % 64)
			}
		}
		s.known[key] = set
	}
	return set
}

// attributeClasses returns for each advertisement the index of the first one with the same route attributes.
func attributeClasses(advertisements []Advertisement) []int {
	classes := make([]int, len(advertisements))
	known := map[string]int{}
	for i := range advertisements {
		key := attributesKey(&advertisements[i])
		first, ok := known[key]
		if !ok {
			first = i
			known[key] = i
		}
		classes[i] = first
	}
	return classes
}

func (a *Advertisement) isFor(peer string) bool {
	return len(a.Peers) == 0 || slices.Contains(a.Peers, peer)
}

// attributesKey returns a text that is equal for equal route attributes. Their lists are sorted already.
func attributesKey(a *Advertisement) string {
	number := func(value *uint32) string {
		if value == nil {
			return "-"
		}
		return strconv.FormatUint(uint64(*value), 10)
	}
	return fmt.Sprint(a.Communities, a.LargeCommunities, a.ExtendedCommunities, number(a.LocalPreference), number(a.MED),
		a.Prepend, a.Weighed, a.Length4, a.Length6)
}
