// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// span is the addresses from first to last, of one family.
type span struct{ first, last netip.Addr }

// buildPools fills the pools' addresses without those that somebody else may have.
func (b *builder) buildPools() {
	var all, others []span
	for _, pool := range oldestFirst(b.snapshot.Pools) {
		reference := ObjectReference{Kind: "IPPool", Name: pool.Name}
		all = append(all, b.readSpans(reference, "spec.addresses", pool.Spec.Addresses)...)
		others = append(others, b.readSpans(reference, "spec.reserved", pool.Spec.Reserved)...)
	}
	for _, node := range b.nodes {
		for _, address := range []netip.Addr{node.IPv4, node.IPv6} {
			if address.IsValid() {
				others = append(others, span{address, address})
			}
		}
	}
	for _, part := range subtract(merge(all), merge(others)) {
		b.model.Pools = append(b.model.Pools, part.prefixes()...)
	}
	slices.SortFunc(b.model.Pools, netip.Prefix.Compare)
}

func (b *builder) readSpans(object ObjectReference, field string, texts []string) []span {
	var spans []span
	for i, text := range texts {
		s, err := readSpan(text)
		if err != nil {
			b.invalid(object, fmt.Errorf("%s[%d]: %w", field, i, err))
			continue
		}
		spans = append(spans, s)
	}
	return spans
}

// readSpan reads an address, a CIDR or an inclusive range "first-last".
func readSpan(text string) (span, error) {
	text = strings.TrimSpace(text)
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix.Addr().Is4In6() {
			return span{}, fmt.Errorf("%q is not a CIDR", text)
		}
		return span{prefix.Masked().Addr(), lastOf(prefix)}, nil
	}
	firstText, lastText, isRange := strings.Cut(text, "-")
	if !isRange {
		lastText = firstText
	}
	first, err := parseAddress(strings.TrimSpace(firstText))
	if err != nil {
		return span{}, err
	}
	last, err := parseAddress(strings.TrimSpace(lastText))
	if err != nil {
		return span{}, err
	}
	if first.Is4() != last.Is4() || last.Less(first) {
		return span{}, fmt.Errorf("%q is not a range from a lower to a higher address of one family", text)
	}
	return span{first, last}, nil
}

// lastOf returns the highest address of a prefix.
func lastOf(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Masked().Addr().AsSlice()
	for bit := prefix.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// merge sorts spans and joins those that overlap or touch.
func merge(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last)) })
	var merged []span
	for _, s := range spans {
		if n := len(merged); n > 0 && merged[n-1].reaches(s.first) {
			if merged[n-1].last.Less(s.last) {
				merged[n-1].last = s.last
			}
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// reaches tells whether an address that is not below the span is in it or next to it.
func (s span) reaches(address netip.Addr) bool {
	return s.first.Is4() == address.Is4() && (address.Compare(s.last) <= 0 || address == s.last.Next())
}

// subtract returns what is in spans and not in holes, both merged.
func subtract(spans, holes []span) []span {
	var left []span
	for _, s := range spans {
		for _, hole := range holes {
			if hole.last.Less(s.first) || s.last.Less(hole.first) {
				continue
			}
			if s.first.Less(hole.first) {
				left = append(left, span{s.first, hole.first.Prev()})
			}
			if s.first = hole.last.Next(); !s.first.IsValid() {
				break
			}
		}
		if s.first.IsValid() && s.first.Compare(s.last) <= 0 {
			left = append(left, s)
		}
	}
	return left
}

// prefixes covers the span exactly, with as few prefixes as there are.
func (s span) prefixes() []netip.Prefix {
	var prefixes []netip.Prefix
	for first := s.first; first.IsValid() && first.Compare(s.last) <= 0; {
		prefix := netip.PrefixFrom(first, first.BitLen())
		for prefix.Bits() > 0 {
			wider := netip.PrefixFrom(first, prefix.Bits()-1).Masked()
			if wider.Addr() != first || s.last.Less(lastOf(wider)) {
				break
			}
			prefix = wider
		}
		prefixes = append(prefixes, prefix)
		first = lastOf(prefix).Next()
	}
	return prefixes
}
