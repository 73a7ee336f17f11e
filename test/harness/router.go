// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
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

// kernelRoute is the part we read of `ip -json route show`.
type kernelRoute struct {
	Metric   int    `json:"metric"`
	Gateway  string `json:"gateway"`
	NextHops []struct {
		Gateway string `json:"gateway"`
	} `json:"nexthops"`
}

// NextHops returns the next hops of a VIP in a router's kernel, sorted. Packets take these:
// FRR's BGP table is ahead of them.
func (c *Cluster) NextHops(ctx context.Context, router string, vip netip.Addr) ([]netip.Addr, error) {
	raw, err := c.Exec(ctx, router, "ip", "-json", family(vip), "route", "show", "exact", vip.String())
	if err != nil {
		return nil, err
	}
	hops, err := parseRoutes(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: routes of %s: %w: %s", router, vip, err, raw)
	}
	return hops, nil
}

// family is the option of ip(8) for the family of an address.
func family(address netip.Addr) string {
	if address.Is4() {
		return "-4"
	}
	return "-6"
}

// parseRoutes returns the gateways of the routes with the lowest metric, sorted.
func parseRoutes(raw []byte) ([]netip.Addr, error) {
	var routes []kernelRoute
	if err := json.Unmarshal(raw, &routes); err != nil {
		return nil, err
	}
	if len(routes) == 0 {
		return nil, nil
	}
	best := slices.MinFunc(routes, func(a, b kernelRoute) int { return cmp.Compare(a.Metric, b.Metric) }).Metric
	var hops []netip.Addr
	for _, route := range routes {
		if route.Metric != best {
			continue
		}
		gateways := []string{route.Gateway}
		if len(route.NextHops) > 0 {
			gateways = gateways[:0]
			for _, hop := range route.NextHops {
				gateways = append(gateways, hop.Gateway)
			}
		}
		for _, gateway := range gateways {
			address, err := netip.ParseAddr(gateway)
			if err != nil {
				return nil, fmt.Errorf("gateway: %w", err)
			}
			hops = append(hops, address)
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return slices.Compact(hops), nil
}

// RoutedTo checks that a router's kernel uses exactly the given nodes (from 1) for a VIP.
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
