// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// MaxCount is 2^53-1, the largest integer that every JSON reader keeps exact.
const MaxCount = 1<<53 - 1

// Family is an IP family.
type Family uint8

// Address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns "IPv4" or "IPv6", as in Service.spec.ipFamilies.
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// FamilyOf returns the family of an address that is not IPv4-mapped.
func FamilyOf(address netip.Addr) Family {
	if address.Is4() {
		return IPv4
	}
	return IPv6
}

func lowest(family Family) netip.Addr {
	if family == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Addresses is a set of addresses for many searches. The zero value is the empty set.
type Addresses struct {
	set *netipx.IPSet
	// ranges caches the set's ranges, which the set copies at each call.
	ranges []netipx.IPRange
}

// NewAddresses returns the addresses of a set.
func NewAddresses(set *netipx.IPSet) Addresses {
	return Addresses{set, set.Ranges()}
}

// Contains reports whether the set contains an address.
func (a Addresses) Contains(address netip.Addr) bool {
	return a.set != nil && a.set.Contains(address)
}

func (a Addresses) hasFamily(family Family) bool {
	return slices.ContainsFunc(a.ranges, func(r netipx.IPRange) bool { return FamilyOf(r.From()) == family })
}

func (a Addresses) count() int64 {
	var total uint64
	for _, r := range a.ranges {
		total = min(total+countRange(r), MaxCount)
	}
	return int64(total)
}

func countRange(r netipx.IPRange) uint64 {
	first, last := r.From().As16(), r.To().As16()
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(last[8:]), binary.BigEndian.Uint64(first[8:]), 0)
	high, _ := bits.Sub64(binary.BigEndian.Uint64(last[:8]), binary.BigEndian.Uint64(first[:8]), borrow)
	if high > 0 || low >= MaxCount {
		return MaxCount
	}
	return low + 1
}

func (a Addresses) overlaps(block netip.Prefix) bool {
	return a.set != nil && a.set.OverlapsPrefix(block)
}

// firstFree returns the lowest free address of the set at or after from, of the same family; nextUnused
// returns the first free address at or after its argument. The cost is linear in the number of ranges.
func (a Addresses) firstFree(from netip.Addr, nextUnused func(netip.Addr) netip.Addr) (netip.Addr, bool) {
	first, _ := slices.BinarySearchFunc(a.ranges, from, func(r netipx.IPRange, from netip.Addr) int {
		return r.To().Compare(from)
	})
	for _, r := range a.ranges[first:] {
		if FamilyOf(r.From()) != FamilyOf(from) {
			break
		}
		address := r.From()
		if address.Less(from) {
			address = from
		}
		if address = nextUnused(address); address.IsValid() && !r.To().Less(address) {
			return address, true
		}
	}
	return netip.Addr{}, false
}
