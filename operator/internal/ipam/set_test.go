// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

func rangeOf(first, last string) netipx.IPRange {
	return netipx.IPRangeFrom(netip.MustParseAddr(first), netip.MustParseAddr(last))
}

func setOf(ranges ...netipx.IPRange) Addresses { return without(ranges) }

func without(ranges []netipx.IPRange, others ...netipx.IPRange) Addresses {
	var builder netipx.IPSetBuilder
	for _, r := range ranges {
		builder.AddRange(r)
	}
	for _, r := range others {
		builder.RemoveRange(r)
	}
	set, err := builder.IPSet()
	if err != nil {
		panic(err)
	}
	return NewAddresses(set)
}

func TestCount(t *testing.T) {
	tests := []struct {
		name   string
		ranges []netipx.IPRange
		want   int64
	}{
		{"empty", nil, 0},
		{"single address", []netipx.IPRange{rangeOf("203.0.113.1", "203.0.113.1")}, 1},
		{"duplicate range", []netipx.IPRange{rangeOf("203.0.113.1", "203.0.113.4"), rangeOf("203.0.113.1", "203.0.113.4")}, 4},
		{"both families", []netipx.IPRange{rangeOf("203.0.113.1", "203.0.113.4"), rangeOf("2001:db8::", "2001:db8::f")}, 20},
		{"all IPv4 addresses", []netipx.IPRange{netipx.RangeOfPrefix(netip.MustParsePrefix("0.0.0.0/0"))}, 1 << 32},
		{"a /64", []netipx.IPRange{netipx.RangeOfPrefix(netip.MustParsePrefix("2001:db8::/64"))}, MaxCount},
		{"all IPv6 addresses", []netipx.IPRange{netipx.RangeOfPrefix(netip.MustParsePrefix("::/0"))}, MaxCount},
		{"across 2^64", []netipx.IPRange{rangeOf("2001:db8:0:0:ffff:ffff:ffff:fffe", "2001:db8:0:1::1")}, 4},
		{"exactly the highest count", []netipx.IPRange{rangeOf("2001:db8::", "2001:db8::1f:ffff:ffff:fffe")}, MaxCount},
		{"below the highest count", []netipx.IPRange{rangeOf("2001:db8::", "2001:db8::1f:ffff:ffff:fffd")}, MaxCount - 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := setOf(test.ranges...).count(); got != test.want {
				t.Errorf("count = %d, want %d", got, test.want)
			}
		})
	}
}

func past(used func(netip.Addr) bool) func(netip.Addr) netip.Addr {
	return func(address netip.Addr) netip.Addr {
		for address.IsValid() && used(address) {
			address = address.Next()
		}
		return address
	}
}

func TestFirstFreeAtTheEndsOfAFamily(t *testing.T) {
	set := setOf(rangeOf("255.255.255.254", "255.255.255.255"), rangeOf("::", "::1"))
	all := func(netip.Addr) bool { return true }
	if address, ok := set.firstFree(lowest(IPv4), past(all)); ok {
		t.Errorf("firstFree of a used set = %s", address)
	}
	last := func(address netip.Addr) bool { return address != netip.MustParseAddr("255.255.255.255") }
	if address, ok := set.firstFree(lowest(IPv4), past(last)); !ok || address != netip.MustParseAddr("255.255.255.255") {
		t.Errorf("firstFree = %s, %v, want the last IPv4 address", address, ok)
	}
}

// Offsets 0 to 31 are the last IPv4 addresses, 32 to 63 the first IPv6 ones, for a linear model.
func addressAt(offset int) netip.Addr {
	if offset < 32 {
		return netip.AddrFrom4([4]byte{255, 255, 255, byte(224 + offset)})
	}
	return netip.AddrFrom16([16]byte{15: byte(offset - 32)})
}

func drawRanges(t *rapid.T, label string) []netipx.IPRange {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netipx.IPRange {
		base := rapid.SampledFrom([]int{0, 32}).Draw(t, "family")
		first := rapid.IntRange(0, 31).Draw(t, "first")
		last := rapid.IntRange(first, 31).Draw(t, "last")
		return netipx.IPRangeFrom(addressAt(base+first), addressAt(base+last))
	}), 0, 6).Draw(t, label)
}

func members(ranges []netipx.IPRange) map[netip.Addr]bool {
	found := map[netip.Addr]bool{}
	for offset := range 64 {
		address := addressAt(offset)
		for _, r := range ranges {
			if r.Contains(address) {
				found[address] = true
			}
		}
	}
	return found
}

func TestCountAgainstPlainSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := drawRanges(t, "ranges")
		set, plain := setOf(ranges...), members(ranges)
		if got := set.count(); got != int64(len(plain)) {
			t.Fatalf("count = %d, want %d", got, len(plain))
		}
		for _, family := range []Family{IPv4, IPv6} {
			want := slices.ContainsFunc(ranges, func(r netipx.IPRange) bool { return FamilyOf(r.From()) == family })
			if got := set.hasFamily(family); got != want {
				t.Fatalf("hasFamily(%s) = %t", family, got)
			}
		}
	})
}

func TestFirstFreeIsTheLowest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := drawRanges(t, "ranges")
		used := members(drawRanges(t, "used"))
		from := lowest(rapid.SampledFrom([]Family{IPv4, IPv6}).Draw(t, "family"))
		if rapid.Bool().Draw(t, "from within") {
			from = addressAt(rapid.IntRange(0, 63).Draw(t, "from"))
		}
		var free []netip.Addr
		for address := range members(ranges) {
			if FamilyOf(address) == FamilyOf(from) && !address.Less(from) && !used[address] {
				free = append(free, address)
			}
		}
		slices.SortFunc(free, netip.Addr.Compare)
		got, ok := setOf(ranges...).firstFree(from, past(func(address netip.Addr) bool { return used[address] }))
		if ok != (len(free) > 0) {
			t.Fatalf("firstFree = %v from %s, %d addresses are free", ok, from, len(free))
		}
		if ok && got != free[0] {
			t.Fatalf("firstFree = %s from %s, want %s", got, from, free[0])
		}
	})
}
