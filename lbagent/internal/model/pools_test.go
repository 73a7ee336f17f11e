// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestReadSpan(t *testing.T) {
	for text, want := range map[string]span{
		"203.0.113.7":                         {netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.7")},
		"203.0.113.0/30":                      {netip.MustParseAddr("203.0.113.0"), netip.MustParseAddr("203.0.113.3")},
		" 203.0.113.5 - 203.0.113.9 ":         {netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("203.0.113.9")},
		"2001:db8::/126":                      {netip.MustParseAddr("2001:db8::"), netip.MustParseAddr("2001:db8::3")},
		"2001:db8::ffff-2001:db8::1:0":        {netip.MustParseAddr("2001:db8::ffff"), netip.MustParseAddr("2001:db8::1:0")},
		"203.0.113.9-203.0.113.5":             {},
		"203.0.113.5-2001:db8::1":             {},
		"203.0.113.0/33":                      {},
		"::ffff:203.0.113.0/120":              {},
		"somewhere":                           {},
		"":                                    {},
		"203.0.113.1-203.0.113.2-203.0.113.3": {},
	} {
		got, err := readSpan(text)
		if got != want || (err == nil) != (want != span{}) {
			t.Errorf("readSpan(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

// small is a space of addresses that can be listed, at the end of all there are.
func drawSpans(t *rapid.T, label string) []span {
	base := netip.MustParseAddr("255.255.255.0")
	if rapid.Bool().Draw(t, label+" IPv6") {
		base = netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00")
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) span {
		first := rapid.IntRange(0, 255).Draw(t, "first")
		last := rapid.IntRange(first, 255).Draw(t, "last")
		return span{atEnd(base, first), atEnd(base, last)}
	}), 0, 5).Draw(t, label)
}

func atEnd(base netip.Addr, last int) netip.Addr {
	bytes := base.AsSlice()
	bytes[len(bytes)-1] = byte(last)
	address, _ := netip.AddrFromSlice(bytes)
	return address
}

// The prefixes hold exactly the addresses that are in a span and in no hole, each once.
func TestPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spans, holes := drawSpans(t, "spans"), drawSpans(t, "holes")
		holds := func(spans []span, address netip.Addr) bool {
			return slices.ContainsFunc(spans, func(s span) bool {
				return s.first.Is4() == address.Is4() && s.first.Compare(address) <= 0 && address.Compare(s.last) <= 0
			})
		}
		var prefixes []netip.Prefix
		for _, s := range subtract(merge(slices.Clone(spans)), merge(slices.Clone(holes))) {
			prefixes = append(prefixes, s.prefixes()...)
		}
		for _, base := range []string{"255.255.255.0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00"} {
			for last := range 256 {
				address := atEnd(netip.MustParseAddr(base), last)
				count := 0
				for _, prefix := range prefixes {
					if prefix.Contains(address) {
						count++
					}
				}
				want := 0
				if holds(spans, address) && !holds(holes, address) {
					want = 1
				}
				if count != want {
					t.Fatalf("%s is in %d of the prefixes %v, want %d", address, count, prefixes, want)
				}
			}
		}
	})
}
