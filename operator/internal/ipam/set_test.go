// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func rangeOf(first, last string) Range {
	return Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

func TestSetCount(t *testing.T) {
	tests := []struct {
		name   string
		ranges []Range
		want   int64
	}{
		{"empty", nil, 0},
		{"one address", []Range{rangeOf("203.0.113.1", "203.0.113.1")}, 1},
		{"twice the same", []Range{rangeOf("203.0.113.1", "203.0.113.4"), rangeOf("203.0.113.1", "203.0.113.4")}, 4},
		{"both families", []Range{rangeOf("203.0.113.1", "203.0.113.4"), rangeOf("2001:db8::", "2001:db8::f")}, 20},
		{"all of IPv4", []Range{PrefixRange(netip.MustParsePrefix("0.0.0.0/0"))}, 1 << 32},
		{"a /64", []Range{PrefixRange(netip.MustParsePrefix("2001:db8::/64"))}, MaxCount},
		{"all of IPv6", []Range{PrefixRange(netip.MustParsePrefix("::/0"))}, MaxCount},
		{"across 2^64", []Range{rangeOf("2001:db8:0:0:ffff:ffff:ffff:fffe", "2001:db8:0:1::1")}, 4},
		{"exactly the highest count", []Range{rangeOf("2001:db8::", "2001:db8::1f:ffff:ffff:fffe")}, MaxCount},
		{"one less", []Range{rangeOf("2001:db8::", "2001:db8::1f:ffff:ffff:fffd")}, MaxCount - 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := NewSet(test.ranges...).Count(); got != test.want {
				t.Errorf("Count() = %d, want %d", got, test.want)
			}
		})
	}
}

func TestPrefixRange(t *testing.T) {
	tests := []struct {
		prefix string
		want   Range
	}{
		{"203.0.113.0/24", rangeOf("203.0.113.0", "203.0.113.255")},
		{"203.0.113.8/29", rangeOf("203.0.113.8", "203.0.113.15")},
		{"203.0.113.9/32", rangeOf("203.0.113.9", "203.0.113.9")},
		{"0.0.0.0/0", rangeOf("0.0.0.0", "255.255.255.255")},
		{"2001:db8::/61", rangeOf("2001:db8::", "2001:db8:0:7:ffff:ffff:ffff:ffff")},
		{"2001:db8::1/128", rangeOf("2001:db8::1", "2001:db8::1")},
	}
	for _, test := range tests {
		t.Run(test.prefix, func(t *testing.T) {
			if got := PrefixRange(netip.MustParsePrefix(test.prefix)); got != test.want {
				t.Errorf("PrefixRange = %s, want %s", got, test.want)
			}
		})
	}
}

func TestFirstFreeAtTheEndsOfAFamily(t *testing.T) {
	set := NewSet(rangeOf("255.255.255.254", "255.255.255.255"), rangeOf("::", "::1"))
	all := func(netip.Addr) bool { return true }
	if address, ok := set.FirstFree(IPv4, all); ok {
		t.Errorf("FirstFree of a used set = %s", address)
	}
	last := func(address netip.Addr) bool { return address != netip.MustParseAddr("255.255.255.255") }
	if address, ok := set.FirstFree(IPv4, last); !ok || address != netip.MustParseAddr("255.255.255.255") {
		t.Errorf("FirstFree = %s, %v, want the last address of IPv4", address, ok)
	}
}

// The sets of these tests are small enough to be compared with plain ones:
// offsets 0 to 31 are the last addresses of IPv4, 32 to 63 the first of IPv6.
func addressAt(offset int) netip.Addr {
	if offset < 32 {
		return netip.AddrFrom4([4]byte{255, 255, 255, byte(224 + offset)})
	}
	return netip.AddrFrom16([16]byte{15: byte(offset - 32)})
}

func drawRanges(t *rapid.T, label string) []Range {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Range {
		base := rapid.SampledFrom([]int{0, 32}).Draw(t, "family")
		first := rapid.IntRange(0, 31).Draw(t, "first")
		last := rapid.IntRange(first, 31).Draw(t, "last")
		return Range{First: addressAt(base + first), Last: addressAt(base + last)}
	}), 0, 6).Draw(t, label)
}

func members(ranges []Range) map[netip.Addr]bool {
	found := map[netip.Addr]bool{}
	for offset := range 64 {
		address := addressAt(offset)
		for _, r := range ranges {
			if r.First.BitLen() == address.BitLen() && !address.Less(r.First) && !r.Last.Less(address) {
				found[address] = true
			}
		}
	}
	return found
}

func TestSetAgainstPlainSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rangesA, rangesB := drawRanges(t, "a"), drawRanges(t, "b")
		a, b := NewSet(rangesA...), NewSet(rangesB...)
		plainA, plainB := members(rangesA), members(rangesB)
		rest := a.Minus(b)
		var restCount, common int64
		for offset := range 64 {
			address := addressAt(offset)
			if a.Contains(address) != plainA[address] {
				t.Fatalf("a.Contains(%s) = %v", address, a.Contains(address))
			}
			want := plainA[address] && !plainB[address]
			if rest.Contains(address) != want {
				t.Fatalf("a.Minus(b).Contains(%s) = %v, want %v", address, rest.Contains(address), want)
			}
			if want {
				restCount++
			}
			if plainA[address] && plainB[address] {
				common++
			}
		}
		if a.Count() != int64(len(plainA)) || rest.Count() != restCount {
			t.Fatalf("counts are %d and %d, want %d and %d", a.Count(), rest.Count(), len(plainA), restCount)
		}
		overlap, ok := a.Overlap(b)
		if ok != (common > 0) {
			t.Fatalf("Overlap says %v with %d common addresses", ok, common)
		}
		if ok && (!plainA[overlap.First] || !plainB[overlap.First] || !plainA[overlap.Last] || !plainB[overlap.Last]) {
			t.Fatalf("Overlap = %s is not in both", overlap)
		}
		checkNormal(t, a)
		checkNormal(t, rest)
	})
}

func checkNormal(t *rapid.T, set Set) {
	ranges := set.Ranges()
	for i, r := range ranges {
		if r.Last.Less(r.First) || FamilyOf(r.First) != FamilyOf(r.Last) {
			t.Fatalf("range %s is wrong", r)
		}
		if i > 0 && !ranges[i-1].Last.Less(r.First) {
			t.Fatalf("ranges %s and %s are not sorted or overlap", ranges[i-1], r)
		}
	}
}

func TestFirstFreeIsTheLowest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := drawRanges(t, "ranges")
		used := members(drawRanges(t, "used"))
		family := rapid.SampledFrom([]Family{IPv4, IPv6}).Draw(t, "family")
		var free []netip.Addr
		for address := range members(ranges) {
			if FamilyOf(address) == family && !used[address] {
				free = append(free, address)
			}
		}
		slices.SortFunc(free, netip.Addr.Compare)
		got, ok := NewSet(ranges...).FirstFree(family, func(address netip.Addr) bool { return used[address] })
		if ok != (len(free) > 0) {
			t.Fatalf("FirstFree says %v, %d are free", ok, len(free))
		}
		if ok && got != free[0] {
			t.Fatalf("FirstFree = %s, want %s", got, free[0])
		}
	})
}
