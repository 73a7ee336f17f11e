// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
)

// ParseAddress parses an address without a zone. It returns an IPv4-mapped address as IPv4.
func ParseAddress(text string) (netip.Addr, error) {
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

// ParseHost parses the address of a VIP or a node. Routers must be able to forward packets to it.
func ParseHost(text string) (netip.Addr, error) {
	address, err := ParseAddress(text)
	if err != nil {
		return netip.Addr{}, err
	}
	if special, found := specialOf(address); found {
		return netip.Addr{}, fmt.Errorf("%s is %s (%s), not the address of a host", address, special.kind, special.prefix)
	}
	return address, nil
}

// ParseRange parses an address, a CIDR, or an inclusive range "first-last".
func ParseRange(text string) (netipx.IPRange, error) {
	text = strings.TrimSpace(text)
	if first, last, ok := strings.Cut(text, "-"); ok {
		return parseEnds(first, last)
	}
	if strings.Contains(text, "/") {
		return parseCIDR(text)
	}
	address, err := ParseAddress(text)
	return netipx.IPRangeFrom(address, address), err
}

func parseEnds(firstText, lastText string) (netipx.IPRange, error) {
	first, err := ParseAddress(firstText)
	if err != nil {
		return netipx.IPRange{}, err
	}
	last, err := ParseAddress(lastText)
	if err != nil {
		return netipx.IPRange{}, err
	}
	if first.Is4() != last.Is4() {
		return netipx.IPRange{}, fmt.Errorf("range %s-%s mixes families: both addresses must be IPv4 or both IPv6", first, last)
	}
	if last.Less(first) {
		return netipx.IPRange{}, fmt.Errorf("range %s-%s is inverted: the first address must not be higher than the last", first, last)
	}
	return netipx.IPRangeFrom(first, last), nil
}

func parseCIDR(text string) (netipx.IPRange, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("%q is not a CIDR such as 203.0.113.0/24 or 2001:db8:1::/64", text)
	}
	if prefix.Addr().Is4In6() {
		return netipx.IPRange{}, fmt.Errorf("%q is an IPv4-mapped IPv6 prefix: write it as IPv4", text)
	}
	if prefix.Masked() != prefix {
		return netipx.IPRange{}, fmt.Errorf("%q has host bits set: write %s", text, prefix.Masked())
	}
	return netipx.RangeOfPrefix(prefix), nil
}

func rangeText(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	if prefix, ok := r.Prefix(); ok {
		return prefix.String()
	}
	return r.String()
}

type specialRange struct {
	prefix netip.Prefix
	kind   string
}

// specials are the special-purpose ranges of RFC 6890, RFC 5771, and RFC 4291, sections 2.4 and 2.5.
var specials = []specialRange{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

func specialOf(address netip.Addr) (specialRange, bool) {
	for _, special := range specials {
		if special.prefix.Contains(address) {
			return special, true
		}
	}
	return specialRange{}, false
}

// announceable returns an error if a range contains an address that cannot be a VIP.
func announceable(r netipx.IPRange) error {
	for _, special := range specials {
		if r.Overlaps(netipx.RangeOfPrefix(special.prefix)) {
			return fmt.Errorf("%s has %s addresses (%s), which cannot be announced", rangeText(r), special.kind, special.prefix)
		}
	}
	return nil
}
