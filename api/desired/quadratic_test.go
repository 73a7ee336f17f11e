// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func pairsByDefinition(advertisements []Advertisement, peers []Peer, nodes []labels.Set) []advertisementPair {
	var pairs []advertisementPair
	for j := range advertisements {
		for i := range advertisements[:j] {
			pair := advertisementPair{decides: &advertisements[i], yields: &advertisements[j]}
			if attributesKey(pair.decides) == attributesKey(pair.yields) {
				continue
			}
			for k := range peers {
				peer := &peers[k]
				meet := slices.ContainsFunc(nodes, func(node labels.Set) bool {
					return peer.Nodes.Matches(node) && pair.decides.Nodes.Matches(node) && pair.yields.Nodes.Matches(node)
				})
				if !meet || !pair.decides.isFor(peer.Name) || !pair.yields.isFor(peer.Name) {
					continue
				}
				if peer.IPv4 {
					pair.ipv4 = cmp.Or(pair.ipv4, peer.Name)
				}
				if peer.IPv6 {
					pair.ipv6 = cmp.Or(pair.ipv6, peer.Name)
				}
			}
			if pair.ipv4 != "" || pair.ipv6 != "" {
				pairs = append(pairs, pair)
			}
		}
	}
	return pairs
}

type countingSelector struct {
	labels.Selector
	matches *int
}

func (s countingSelector) Matches(set labels.Labels) bool {
	*s.matches++
	return s.Selector.Matches(set)
}

func TestConflictsMatchTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		matches := 0
		selector := func() labels.Selector {
			set := labels.Set{}
			for _, key := range []string{"a", "b"} {
				if rapid.Bool().Draw(t, "selects by "+key) {
					set[key] = rapid.SampledFrom([]string{"1", "2"}).Draw(t, key)
				}
			}
			return countingSelector{labels.SelectorFromSet(set), &matches}
		}
		var advertisements []Advertisement
		for i := range rapid.IntRange(0, 6).Draw(t, "advertisements") {
			med := rapid.Uint32Range(0, 2).Draw(t, "med")
			advertisements = append(advertisements, Advertisement{
				Name: fmt.Sprint("a", i), MED: &med, Nodes: selector(),
				Peers: rapid.SampledFrom([][]string{nil, {"p0"}, {"p1", "p2"}}).Draw(t, "peers"),
			})
		}
		var peers []Peer
		for i := range rapid.IntRange(0, 4).Draw(t, "peers") {
			peers = append(peers, Peer{Nodes: selector(), Session: Session{
				Name: fmt.Sprint("p", i), IPv4: rapid.Bool().Draw(t, "ipv4"), IPv6: rapid.Bool().Draw(t, "ipv6"),
			}})
		}
		var nodes []labels.Set
		for range rapid.IntRange(0, 70).Draw(t, "nodes") {
			nodes = append(nodes, labels.Set{
				"a": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "a"), "b": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "b"),
			})
		}
		got := conflictingPairs(advertisements, peers, nodes)
		if limit := (len(advertisements) + len(peers)) * len(nodes); matches > limit {
			t.Fatalf("selectors were evaluated %d times, %d nodes and selectors allow %d", matches, len(nodes), limit)
		}
		if want := pairsByDefinition(advertisements, peers, nodes); !reflect.DeepEqual(got, want) {
			t.Fatalf("rivals are %+v, want %+v", got, want)
		}
	})
}

func TestOverlapsAreThoseOfTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pools []*Pool
		for i := range rapid.IntRange(0, 8).Draw(t, "pools") {
			var addresses []string
			for range rapid.IntRange(1, 3).Draw(t, "ranges") {
				first := rapid.IntRange(0, 30).Draw(t, "first")
				last := rapid.IntRange(first, min(first+4, 31)).Draw(t, "last")
				prefix := rapid.SampledFrom([]string{"203.0.113.%d", "2001:db8::%x"}).Draw(t, "family")
				addresses = append(addresses, fmt.Sprintf(prefix+"-"+prefix, first, last))
			}
			pool, problems := ParsePool(&millracev1beta1.VIPPool{Spec: millracev1beta1.VIPPoolSpec{Addresses: addresses}})
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			pool.Name = fmt.Sprint("p", i)
			pools = append(pools, &pool)
		}
		for i, got := range overlaps(pools) {
			var want []*Pool
			for _, other := range pools[:i] {
				if !isEmpty(Common(pools[i].all, other.all)) {
					want = append(want, other)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s overlaps %d, want %d", pools[i].Name, len(got), len(want))
			}
		}
	})
}
