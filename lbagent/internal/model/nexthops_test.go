// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func TestNextHops(t *testing.T) {
	network := func(name, address, prefix string) Network {
		return Network{Interface: name, Prefix: netip.MustParsePrefix(prefix), Address: netip.MustParseAddr(address)}
	}
	spare := network("up1", "203.0.113.7", "203.0.113.0/24")
	spare.Unpreferred = true
	excluded := network("mgmt", "198.19.1.1", "198.19.1.0/24")
	excluded.Excluded = true
	networks := []Network{
		excluded,
		network("lo", "127.0.0.1", "127.0.0.0/8"),
		network("lo", "198.18.0.1", "198.18.0.1/32"),
		network("lo", "2001:db8:9::1", "2001:db8:9::1/128"),
		network("up0", "198.51.100.2", "198.51.100.0/24"),
		network("up0", "2001:db8::2", "2001:db8::/64"),
		network("up0", "fe80::2", "fe80::/64"),
		spare,
		network("up1", "203.0.113.2", "203.0.113.0/24"),
		network("up1", "203.0.113.9", "203.0.113.0/24"),
		network("up1", "2001:db8:1::2", "2001:db8:1::/64"),
		network("up1", "fe80::3", "fe80::/64"),
		network("bare", "fe80::4", "fe80::/64"),
		network("tie", "198.18.1.1", "198.18.1.2/32"),
	}
	self := forwarding.Self{IPv4: netip.MustParseAddr("198.51.100.2"), IPv6: netip.MustParseAddr("2001:db8::2")}
	for name, test := range map[string]struct {
		router, source, sourceInterface string
		ipv4, ipv6                      string
	}{
		"network of the node":                      {"198.51.100.1", "", "", "198.51.100.2", "2001:db8::2"},
		"other network of the node":                {"203.0.113.1", "", "", "203.0.113.2", "2001:db8:1::2"},
		"other network, IPv6":                      {"2001:db8:1::1", "", "", "203.0.113.2", "2001:db8:1::2"},
		"source address in the network":            {"203.0.113.1", "203.0.113.9", "", "203.0.113.9", "2001:db8:1::2"},
		"source address in another network":        {"203.0.113.1", "198.18.0.1", "", "203.0.113.2", "2001:db8:1::2"},
		"unnumbered":                               {"fe80::1%up1", "", "", "203.0.113.2", "2001:db8:1::2"},
		"link without addresses":                   {"fe80::1%bare", "", "", "198.51.100.2", "fe80::4"},
		"point-to-point link":                      {"198.18.1.2", "", "", "198.18.1.1", "2001:db8::2"},
		"not through an uplink":                    {"198.19.1.2", "", "", "198.51.100.2", "2001:db8::2"},
		"remote":                                   {"198.19.0.1", "", "", "198.51.100.2", "2001:db8::2"},
		"remote, with a source address":            {"198.19.0.1", "203.0.113.9", "", "203.0.113.9", "2001:db8:1::2"},
		"remote, from an interface":                {"198.19.0.1", "", "lo", "198.18.0.1", "2001:db8::2"},
		"remote, source address without a network": {"198.19.0.1", "198.18.7.7", "", "198.51.100.2", "2001:db8::2"},
		"address of the node itself":               {"203.0.113.2", "", "", "198.51.100.2", "2001:db8::2"},
		"on the loopback interface":                {"127.0.0.2", "", "", "198.51.100.2", "2001:db8::2"},
	} {
		peer := &Peer{Address: netip.MustParseAddr(test.router), SourceInterface: test.sourceInterface}
		if test.source != "" {
			peer.Source = netip.MustParseAddr(test.source)
		}
		want := NextHops{IPv4: netip.MustParseAddr(test.ipv4), IPv6: netip.MustParseAddr(test.ipv6)}
		if got := nextHops(peer, self, networks); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := nextHops(&Peer{Address: netip.MustParseAddr("198.51.100.1")}, self, nil); got != (NextHops{IPv4: self.IPv4, IPv6: self.IPv6}) {
		t.Errorf("nextHops without networks = %v", got)
	}
}
