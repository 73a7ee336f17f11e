// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// NodeAddress returns the address of node i (from 1) on the fabric, of the
// family of the given address.
func NodeAddress(i int, family netip.Addr) netip.Addr {
	if family.Is4() {
		return netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:0:1::%d", 10+i))
}

// bgpTable is the part we read of FRR's `show bgp … json`.
type bgpTable struct {
	Routes map[string][]struct {
		Valid     bool `json:"valid"`
		Bestpath  bool `json:"bestpath"`
		Multipath bool `json:"multipath"`
		Nexthops  []struct {
			IP    string `json:"ip"`
			Scope string `json:"scope"`
		} `json:"nexthops"`
	} `json:"routes"`
}

// NextHops returns the next hops that a router uses for a VIP according to
// its BGP table, sorted: one for each path that it takes part of the traffic
// through.
func (c *Cluster) NextHops(ctx context.Context, router string, vip netip.Addr) ([]netip.Addr, error) {
	family := "ipv4"
	if vip.Is6() {
		family = "ipv6"
	}
	raw, err := c.Run(ctx, "vtysh", router, "--", "-c", "show bgp "+family+" unicast json")
	if err != nil {
		return nil, err
	}
	var table bgpTable
	if err := json.Unmarshal(raw, &table); err != nil {
		return nil, fmt.Errorf("%s: show bgp %s unicast json: %w", router, family, err)
	}
	prefix := netip.PrefixFrom(vip, vip.BitLen()).String()
	var hops []netip.Addr
	for _, path := range table.Routes[prefix] {
		if !path.Valid || !path.Bestpath && !path.Multipath {
			continue
		}
		for _, hop := range path.Nexthops {
			address, err := netip.ParseAddr(hop.IP)
			if err != nil {
				return nil, fmt.Errorf("%s: next hop %q of %s: %w", router, hop.IP, prefix, err)
			}
			if !address.IsLinkLocalUnicast() {
				hops = append(hops, address)
			}
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return slices.Compact(hops), nil
}

// RoutedTo checks that a router uses exactly the given nodes (from 1) for a VIP.
func (c *Cluster) RoutedTo(ctx context.Context, router string, vip netip.Addr, nodes ...int) error {
	have, err := c.NextHops(ctx, router, vip)
	if err != nil {
		return err
	}
	var want []netip.Addr
	for _, node := range nodes {
		want = append(want, NodeAddress(node, vip))
	}
	slices.SortFunc(want, netip.Addr.Compare)
	if !slices.Equal(have, want) {
		return fmt.Errorf("%s routes %s to %v, want %v", router, vip, have, want)
	}
	return nil
}
