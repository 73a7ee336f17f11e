// SPDX-License-Identifier: Apache-2.0

package forwarding_test

import (
	"math/bits"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func bloomHas(f *forwarding.Bloom, address netip.Addr) bool {
	bit, part := forwarding.BloomBit(address), forwarding.BloomPart(address)
	return f.Word(int(bit/64))>>(bit%64)&1 == 1 && f.PartWord(int(part/64))>>(part%64)&1 == 1
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
					t.Errorf("with %v: %v is not in the filter", prefixes[i:][j], address)
				}
			}
			filter.Remove(prefix)
		}
		for i := range forwarding.BloomWords {
			if filter.Word(i) != 0 || filter.PartWord(i) != 0 {
				t.Fatalf("word %d = %x, part word %x after the removal of all prefixes",
					i, filter.Word(i), filter.PartWord(i))
			}
		}
	})
}

func TestBloomSetsFewBits(t *testing.T) {
	const all = 64 * forwarding.BloomWords
	for text, want := range map[string]struct{ networks, parts int }{
		"203.0.113.10/32": {1, 1}, "203.0.113.6/31": {1, 1},
		"203.0.113.128/26": {1, 16}, "203.0.113.0/24": {1, 64},
		"198.18.0.0/22": {4, 4 * 64}, "2001:db8::/62": {4, 4 * 64},
		"2001:db8::/128": {1, 1}, "2001:db8::1/128": {1, 1},
		"2001:db8::1000/116": {1, 1}, "2001:db8::/112": {1, 16},
		"2001:db8::8000:0:0:0/65": {1, 1}, "2001:db8::/64": {1, 64},
		"10.0.0.0/7": {all, all}, "2001:db8::/40": {all, all},
	} {
		filter, networks, parts := &forwarding.Bloom{}, 0, 0
		filter.Add(netip.MustParsePrefix(text))
		for i := range forwarding.BloomWords {
			networks += bits.OnesCount64(filter.Word(i))
			parts += bits.OnesCount64(filter.PartWord(i))
		}
		if networks != want.networks || parts != want.parts {
			t.Errorf("%s sets %d network bits and %d part bits, want %+v", text, networks, parts, want)
		}
	}
}

func TestBloomDistinguishesHosts(t *testing.T) {
	for _, test := range []struct {
		pool, host string
		want       bool
	}{
		{"203.0.113.128/26", "203.0.113.127", false},
		{"203.0.113.128/26", "203.0.113.192", false},
		{"203.0.113.129/32", "203.0.113.131", true},
		{"203.0.113.129/32", "203.0.113.132", false},
		{"2001:db8::1000/116", "2001:db8::fff", false},
		{"2001:db8::1000/116", "2001:db8::2000", false},
		{"2001:db8::1000/117", "2001:db8::1fff", true},
		{"2001:db8::/112", "2001:db8::2:0", false},
		{"2001:db8::/112", "2001:db8::200:ff:fe00:1", false},
	} {
		filter := &forwarding.Bloom{}
		filter.Add(netip.MustParsePrefix(test.pool))
		if got := bloomHas(filter, netip.MustParseAddr(test.host)); got != test.want {
			t.Errorf("%s added: %s in the filter: %v, want %v",
				test.pool, test.host, got, test.want)
		}
	}
}
