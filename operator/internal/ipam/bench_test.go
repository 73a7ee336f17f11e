// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"testing"

	"go4.org/netipx"
)

// BenchmarkNext looks for the next address of pools from which many VIPs were taken.
func BenchmarkNext(b *testing.B) {
	for _, test := range []struct {
		prefix string
		vips   int
	}{
		{"198.18.0.0/16", 0}, {"198.18.0.0/16", 1 << 15}, {"198.18.0.0/16", 1<<16 - 1},
		{"2001:db8::/64", 0}, {"2001:db8::/64", 1 << 15},
	} {
		b.Run(fmt.Sprintf("%s with %d VIPs", test.prefix, test.vips), func(b *testing.B) {
			prefix := netip.MustParsePrefix(test.prefix)
			pool := Pool{Name: "p", AutoAssign: true, Addresses: setOf(netipx.RangeOfPrefix(prefix))}
			table := NewTable()
			address := prefix.Addr()
			for range test.vips {
				table.Put(VIP{Address: address, Pool: "p"})
				address = address.Next()
			}
			for b.Loop() {
				if _, ok := table.next(pool, FamilyOf(address)); !ok {
					b.Fatal("no address is free")
				}
			}
		})
	}
	b.Run("all were used", func(b *testing.B) {
		table, pool := usedUp(netip.MustParsePrefix("198.18.0.0/16"))
		for b.Loop() {
			address, ok := table.next(pool, IPv4)
			if !ok {
				b.Fatal("no address is free")
			}
			table.Put(VIP{Address: address, Pool: "p"})
			table.Delete(address)
		}
	})
	b.Run("of 512 ranges", func(b *testing.B) {
		var ranges []netipx.IPRange
		address := netip.MustParseAddr("2001:db8::")
		for range 512 {
			ranges = append(ranges, netipx.IPRangeFrom(address, address))
			address = address.Next().Next()
		}
		pool := Pool{Name: "p", AutoAssign: true, Addresses: setOf(ranges...)}
		table := NewTable()
		for i, r := range ranges {
			if i != 256 {
				table.Put(VIP{Address: r.From(), Pool: "p"})
			}
		}
		for b.Loop() {
			if _, ok := table.next(pool, IPv6); !ok {
				b.Fatal("no address is free")
			}
		}
	})
}
