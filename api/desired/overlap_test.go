// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func usableOf(pools []Pool) []string {
	var lines []string
	for i := range pools {
		lines = append(lines, strings.Join(append([]string{pools[i].Name}, pools[i].UsableRanges()...), " "))
	}
	slices.Sort(lines)
	return lines
}

func limitsOf(pools []Pool) []Problem {
	var limits []Problem
	for _, pool := range pools {
		limits = append(limits, pool.Limits...)
	}
	return limits
}

func TestOverlap(t *testing.T) {
	reserving := func(pool millracev1beta1.VIPPool, reserved ...string) millracev1beta1.VIPPool {
		return with(pool, func(s *millracev1beta1.VIPPoolSpec) { s.Reserved = reserved })
	}
	tests := []struct {
		name    string
		objects []millracev1beta1.VIPPool
		usable  []string
		// limits are "name reason message" of pools in use, problems those of other pools.
		limits, problems []string
	}{
		{
			name:    "the older pool keeps the addresses",
			objects: []millracev1beta1.VIPPool{poolAged("a", 1, "198.51.100.0/24", "203.0.113.0/28"), poolAged("z", 0, "203.0.113.8-203.0.113.20")},
			usable:  []string{"a 198.51.100.0/24 203.0.113.0/29", "z 203.0.113.8-203.0.113.20"},
			limits:  []string{`a PoolOverlap spec.addresses[1]: 203.0.113.0/28 overlaps the older pool "z", which keeps 203.0.113.8/29`},
		},
		{
			name:    "of the same age the first by name",
			objects: []millracev1beta1.VIPPool{poolAged("z", 0, "203.0.113.0/30"), poolAged("a", 0, "203.0.113.1/32")},
			usable:  []string{"a 203.0.113.1", "z 203.0.113.0 203.0.113.2/31"},
			limits:  []string{`z PoolOverlap spec.addresses[0]: 203.0.113.0/30 overlaps the older pool "a", which keeps 203.0.113.1`},
		},
		{
			name:     "nothing is left",
			objects:  []millracev1beta1.VIPPool{poolAged("a", 0, "203.0.113.0/24"), poolAged("b", 1, "203.0.113.4/30", "203.0.113.9/32")},
			usable:   []string{"a 203.0.113.0/24"},
			problems: []string{"b PoolOverlap spec.addresses[0]: ", "b PoolOverlap spec.addresses[1]: ", "b PoolOverlap spec.addresses: no address is left to assign"},
		},
		{
			name: "three pools",
			objects: []millracev1beta1.VIPPool{
				poolAged("a", 0, "203.0.113.0/25"), poolAged("b", 1, "203.0.113.0/24"), poolAged("c", 2, "203.0.113.128/25", "198.51.100.0/24"),
			},
			usable: []string{"a 203.0.113.0/25", "b 203.0.113.128/25", "c 198.51.100.0/24"},
			limits: []string{
				`b PoolOverlap spec.addresses[0]: 203.0.113.0/24 overlaps the older pool "a", which keeps 203.0.113.0/25`,
				`c PoolOverlap spec.addresses[0]: 203.0.113.128/25 overlaps the older pool "b", which keeps 203.0.113.128/25`,
			},
		},
		{
			name:     "an invalid pool is in nobody's way",
			objects:  []millracev1beta1.VIPPool{poolAged("a", 0, "203.0.113.0/24", "203.0.113.1/24"), poolAged("b", 1, "203.0.113.0/24")},
			usable:   []string{"b 203.0.113.0/24"},
			problems: []string{"a Invalid spec.addresses[1]: "},
		},
		{
			name:    "addresses that are reserved in one pool are not given by another",
			objects: []millracev1beta1.VIPPool{reserving(poolAged("a", 0, "203.0.113.0/24"), "203.0.113.1"), poolAged("b", 1, "203.0.113.1/32", "198.51.100.1/32")},
			usable:  []string{"a 203.0.113.0 203.0.113.2-203.0.113.255", "b 198.51.100.1"},
			limits:  []string{`b PoolOverlap spec.addresses[0]: 203.0.113.1/32 overlaps the older pool "a"`},
		},
		{
			name:    "what the younger pool reserves is no news",
			objects: []millracev1beta1.VIPPool{poolAged("a", 0, "203.0.113.0/32"), reserving(poolAged("b", 1, "203.0.113.0/31"), "203.0.113.0")},
			usable:  []string{"a 203.0.113.0", "b 203.0.113.1"},
		},
		{
			name:    "many places",
			objects: []millracev1beta1.VIPPool{poolAged("a", 0, "203.0.113.1/32", "203.0.113.3/32", "203.0.113.5/32", "203.0.113.7/32", "203.0.113.9/32", "203.0.113.11/32"), poolAged("b", 1, "203.0.113.0-203.0.113.12")},
			usable: []string{
				"a 203.0.113.1 203.0.113.3 203.0.113.5 203.0.113.7 203.0.113.9 203.0.113.11",
				"b 203.0.113.0 203.0.113.2 203.0.113.4 203.0.113.6 203.0.113.8 203.0.113.10 203.0.113.12",
			},
			limits: []string{`b PoolOverlap spec.addresses[0]: 203.0.113.0-203.0.113.12 overlaps the older pool "a", which keeps ` +
				"203.0.113.1, 203.0.113.3, 203.0.113.5, 203.0.113.7, 203.0.113.9, 1 more"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pools, problems := Pools(test.objects, Occupation{})
			if got := usableOf(pools); !slices.Equal(got, test.usable) {
				t.Errorf("usable are %q, want %q", got, test.usable)
			}
			checkProblems(t, limitsOf(pools), test.limits)
			checkProblems(t, problems, test.problems)
		})
	}
}

func TestAddressesHaveOnePool(t *testing.T) {
	at := func(offset int) netip.Addr {
		if offset < 16 {
			return netip.AddrFrom4([4]byte{203, 0, 113, byte(240 + offset)})
		}
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 15: byte(offset - 16)})
	}
	draw := rapid.Custom(func(t *rapid.T) [2]int {
		base := rapid.SampledFrom([]int{0, 16}).Draw(t, "family")
		first := rapid.IntRange(0, 15).Draw(t, "first")
		return [2]int{base + first, base + rapid.IntRange(first, 15).Draw(t, "last")}
	})
	has := func(ranges [][2]int, offset int) bool {
		return slices.ContainsFunc(ranges, func(r [2]int) bool { return r[0] <= offset && offset <= r[1] })
	}
	texts := func(ranges [][2]int) (texts []string) {
		for _, r := range ranges {
			texts = append(texts, at(r[0]).String()+"-"+at(r[1]).String())
		}
		return texts
	}
	rapid.Check(t, func(t *rapid.T) {
		var objects []millracev1beta1.VIPPool
		var addresses, reserved [][][2]int
		for i := range rapid.IntRange(1, 4).Draw(t, "pools") {
			addresses = append(addresses, rapid.SliceOfN(draw, 1, 3).Draw(t, "addresses"))
			reserved = append(reserved, rapid.SliceOfN(draw, 0, 2).Draw(t, "reserved"))
			objects = append(objects, with(poolAged(string(rune('a'+i)), i, texts(addresses[i])...), func(s *millracev1beta1.VIPPoolSpec) {
				s.Reserved = texts(reserved[i])
			}))
		}
		others := rapid.SliceOfN(draw, 0, 3).Draw(t, "others")
		var occupied []Occupied
		for _, text := range texts(others) {
			r, _ := ParseRange(text)
			occupied = append(occupied, Occupied{Range: r, By: "somebody"})
		}
		pools, _ := Pools(rapid.Permutation(objects).Draw(t, "objects"), NewOccupation(occupied))
		for offset := range 32 {
			var got []string
			for _, pool := range pools {
				if pool.Addresses.Contains(at(offset)) {
					got = append(got, pool.Name)
				}
			}
			var want []string
			for i := range objects {
				if has(addresses[i], offset) {
					if !has(reserved[i], offset) && !has(others, offset) {
						want = []string{objects[i].Name}
					}
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s is given by %v, want %v", at(offset), got, want)
			}
		}
		for i := range pools {
			if pools[i].UsableRanges() == nil && len(pools[i].Limits) > 0 {
				t.Fatalf("pool %s has no address left but is used", pools[i].Name)
			}
		}
	})
}
