// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// ParseRange reads an address, a CIDR or an inclusive range "first-last".
func ParseRange(text string) (ipam.Range, error) {
	text = strings.TrimSpace(text)
	if first, last, ok := strings.Cut(text, "-"); ok {
		return parseEnds(first, last)
	}
	if strings.Contains(text, "/") {
		return parsePrefix(text)
	}
	address, err := parseAddress(text)
	return ipam.Range{First: address, Last: address}, err
}

func parseEnds(firstText, lastText string) (ipam.Range, error) {
	first, err := parseAddress(firstText)
	if err != nil {
		return ipam.Range{}, err
	}
	last, err := parseAddress(lastText)
	if err != nil {
		return ipam.Range{}, err
	}
	r := ipam.Range{First: first, Last: last}
	if ipam.FamilyOf(first) != ipam.FamilyOf(last) {
		return ipam.Range{}, fmt.Errorf("range %s mixes families: both addresses must be IPv4 or both IPv6", r)
	}
	if last.Less(first) {
		return ipam.Range{}, fmt.Errorf("range %s is inverted: the first address must not be higher than the last", r)
	}
	return r, nil
}

func parsePrefix(text string) (ipam.Range, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return ipam.Range{}, fmt.Errorf("%q is not a CIDR such as 203.0.113.0/24 or 2001:db8:1::/64", text)
	}
	if prefix.Addr().Is4In6() {
		return ipam.Range{}, fmt.Errorf("%q is an IPv4-mapped IPv6 prefix: write it as IPv4", text)
	}
	if prefix.Masked() != prefix {
		return ipam.Range{}, fmt.Errorf("%q has bits set behind its prefix length: write %s", text, prefix.Masked())
	}
	return ipam.PrefixRange(prefix), nil
}

// parseAddress reads an address that can be a VIP: unicast, and no zone.
func parseAddress(text string) (netip.Addr, error) {
	text = strings.TrimSpace(text)
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	if address.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone: only addresses without one can be routed", text)
	}
	return address.Unmap(), nil
}

// usable says whether VIPs can be taken from a range: neither multicast,
// loopback, link-local nor the unspecified address.
func usable(r ipam.Range) error {
	for _, forbidden := range notUnicast {
		if _, overlaps := ipam.NewSet(r).Overlap(ipam.NewSet(ipam.PrefixRange(forbidden))); overlaps {
			return fmt.Errorf("range %s has addresses of %s, which cannot be announced", r, forbidden)
		}
	}
	return nil
}

// notUnicast are prefixes that no router forwards to a host (RFC 6890, RFC
// 5771, RFC 4291 sections 2.4 and 2.5).
var notUnicast = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::/127"),
	netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}
