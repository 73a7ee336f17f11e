// SPDX-License-Identifier: Apache-2.0

package forwarding_test

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func bloomHas(f *forwarding.Bloom, address netip.Addr) bool {
	bit := forwarding.BloomBit(address)
	return f.Word(int(bit/64))>>(bit%64)&1 == 1
}

func drawPrefix(t *rapid.T, label string) netip.Prefix {
	b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, label)
	bits := rapid.IntRange(4, 32).Draw(t, label+" bits")
	if rapid.Bool().Draw(t, label+" IPv6") {
		b = rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label)
		bits = rapid.IntRange(44, 128).Draw(t, label+" bits")
	}
	address, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(address, bits).Masked()
}

// drawInside is an address of the prefix.
func drawInside(t *rapid.T, prefix netip.Prefix, label string) netip.Addr {
	b := prefix.Addr().AsSlice()
	random := rapid.SliceOfN(rapid.Byte(), len(b), len(b)).Draw(t, label)
	for i := range b {
		keep := min(max(prefix.Bits()-8*i, 0), 8)
		mask := byte(0xff >> keep)
		b[i] |= random[i] & mask
	}
	address, _ := netip.AddrFromSlice(b)
	return address
}

// Whatever was added and not removed is found; when all is removed nothing is.
func TestBloom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		filter := &forwarding.Bloom{}
		prefixes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.Prefix { return drawPrefix(t, "prefix") }), 1, 4).Draw(t, "prefixes")
		for _, prefix := range prefixes {
			filter.Add(prefix)
		}
		for i, prefix := range prefixes {
			for j, other := range prefixes[i:] {
				address := drawInside(t, other, "inside")
				if !bloomHas(filter, address) {
					t.Errorf("with %v: %v is missing", prefixes[i:][j], address)
				}
			}
			filter.Remove(prefix)
		}
		for i := range forwarding.BloomWords {
			if filter.Word(i) != 0 {
				t.Fatalf("word %d is %x when all are removed", i, filter.Word(i))
			}
		}
	})
}

func TestBloomSetsFewBits(t *testing.T) {
	for text, want := range map[string]int{
		"203.0.113.10/32": 1, "203.0.113.0/24": 1, "198.18.0.0/22": 4, "2001:db8::1/128": 1, "2001:db8::/62": 4,
		"10.0.0.0/7": 64 * forwarding.BloomWords, "2001:db8::/40": 64 * forwarding.BloomWords,
	} {
		filter, bits := &forwarding.Bloom{}, 0
		filter.Add(netip.MustParsePrefix(text))
		for i := range forwarding.BloomWords {
			for word := filter.Word(i); word != 0; word &= word - 1 {
				bits++
			}
		}
		if bits != want {
			t.Errorf("%s sets %d bits, want %d", text, bits, want)
		}
	}
}
