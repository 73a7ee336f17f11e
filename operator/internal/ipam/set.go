// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
)

// MaxCount is the highest number of addresses that is told; larger sets say
// this one (2^53-1, the largest integer that every JSON reader keeps exact).
const MaxCount = 1<<53 - 1

// Family is an IP family.
type Family uint8

// IP families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String is "IPv4" or "IPv6", as in Service.spec.ipFamilies.
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

// Range is an inclusive range of addresses of one family, First <= Last.
type Range struct {
	First, Last netip.Addr
}

// PrefixRange returns all addresses of a prefix.
func PrefixRange(prefix netip.Prefix) Range {
	prefix = prefix.Masked()
	bytes := prefix.Addr().AsSlice()
	for i := range bytes {
		keep := min(max(prefix.Bits()-8*i, 0), 8)
		bytes[i] |= 0xff >> keep
	}
	last, _ := netip.AddrFromSlice(bytes)
	return Range{First: prefix.Addr(), Last: last}
}

// String is "first-last", or the address when there is only one.
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Set is an immutable set of addresses of both families. The zero value is
// empty.
type Set struct {
	// ranges are sorted, IPv4 before IPv6, and neither overlap nor touch.
	ranges []Range
}

// NewSet returns the union of ranges.
func NewSet(ranges ...Range) Set {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int { return a.First.Compare(b.First) })
	var merged []Range
	for _, next := range sorted {
		if n := len(merged); n > 0 && touches(merged[n-1], next) {
			if merged[n-1].Last.Less(next.Last) {
				merged[n-1].Last = next.Last
			}
			continue
		}
		merged = append(merged, next)
	}
	return Set{ranges: merged}
}

// touches says whether b, which does not start before a, overlaps a or
// follows it without a gap.
func touches(a, b Range) bool {
	if a.First.BitLen() != b.First.BitLen() {
		return false
	}
	return !a.Last.Less(b.First) || a.Last.Next() == b.First
}

// Ranges returns the set as sorted ranges that neither overlap nor touch.
func (s Set) Ranges() []Range {
	return slices.Clone(s.ranges)
}

// Contains says whether an address is in the set.
func (s Set) Contains(address netip.Addr) bool {
	i := sort.Search(len(s.ranges), func(i int) bool { return !s.ranges[i].Last.Less(address) })
	return i < len(s.ranges) && !address.Less(s.ranges[i].First)
}

// Minus returns the addresses of s that are not in other.
func (s Set) Minus(other Set) Set {
	var rest []Range
	for _, r := range s.ranges {
		rest = append(rest, cut(r, other.ranges)...)
	}
	return Set{ranges: rest}
}

// cut returns what is left of r without the sorted holes.
func cut(r Range, holes []Range) []Range {
	var rest []Range
	first := r.First
	for _, hole := range holes {
		if hole.Last.Less(first) {
			continue
		}
		if r.Last.Less(hole.First) {
			break
		}
		if first.Less(hole.First) {
			rest = append(rest, Range{First: first, Last: hole.First.Prev()})
		}
		if !hole.Last.Less(r.Last) {
			return rest
		}
		first = hole.Last.Next()
	}
	return append(rest, Range{First: first, Last: r.Last})
}

// Overlap returns the first range of addresses that both sets have.
func (s Set) Overlap(other Set) (Range, bool) {
	i, j := 0, 0
	for i < len(s.ranges) && j < len(other.ranges) {
		a, b := s.ranges[i], other.ranges[j]
		switch {
		case a.Last.Less(b.First):
			i++
		case b.Last.Less(a.First):
			j++
		default:
			return Range{First: later(a.First, b.First), Last: earlier(a.Last, b.Last)}, true
		}
	}
	return Range{}, false
}

func later(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

func earlier(a, b netip.Addr) netip.Addr {
	if b.Less(a) {
		return b
	}
	return a
}

// Has says whether the set has any address of a family.
func (s Set) Has(family Family) bool {
	return slices.ContainsFunc(s.ranges, func(r Range) bool { return FamilyOf(r.First) == family })
}

// Count returns the number of addresses, at most MaxCount.
func (s Set) Count() int64 {
	var total uint64
	for _, r := range s.ranges {
		total = min(total+count(r), MaxCount)
	}
	return int64(total)
}

func count(r Range) uint64 {
	first, last := r.First.As16(), r.Last.As16()
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(last[8:]), binary.BigEndian.Uint64(first[8:]), 0)
	high, _ := bits.Sub64(binary.BigEndian.Uint64(last[:8]), binary.BigEndian.Uint64(first[:8]), borrow)
	if high > 0 || low >= MaxCount {
		return MaxCount
	}
	return low + 1
}

// FirstFree returns the lowest address of a family that is not used. It takes
// as many steps as there are used addresses before it.
func (s Set) FirstFree(family Family, used func(netip.Addr) bool) (netip.Addr, bool) {
	for _, r := range s.ranges {
		if FamilyOf(r.First) != family {
			continue
		}
		for address := r.First; address.IsValid() && !r.Last.Less(address); address = address.Next() {
			if !used(address) {
				return address, true
			}
		}
	}
	return netip.Addr{}, false
}
