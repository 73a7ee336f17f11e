// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
		Gateway netip.Addr `json:"gateway"`
		Weight  int        `json:"weight"`
	} `json:"nexthops"`
}

// NextHops returns the next hops of a VIP in a router's kernel, sorted. Packets take these:
// FRR's BGP table is ahead of them.
func (c *Cluster) NextHops(ctx context.Context, router string, vip netip.Addr) ([]netip.Addr, error) {
	weights, err := c.Weights(ctx, router, vip)
	return slices.SortedFunc(maps.Keys(weights), netip.Addr.Compare), err
}

// Weights returns what the next hops of a VIP weigh in a router's kernel, against each other.
func (c *Cluster) Weights(ctx context.Context, router string, vip netip.Addr) (map[netip.Addr]int, error) {
	raw, err := c.Exec(ctx, router, "ip", "-json", family(vip), "route", "show", "exact", vip.String())
	if err != nil {
		return nil, err
	}
	weights, err := parseRoutes(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: routes of %s: %w: %s", router, vip, err, raw)
	}
	return weights, nil
}

// family is the option of ip(8) for the family of an address.
func family(address netip.Addr) string {
	if address.Is4() {
		return "-4"
	}
	return "-6"
}

// parseRoutes returns the gateways of the routes with the lowest metric, with their weights.
func parseRoutes(raw []byte) (map[netip.Addr]int, error) {
	var routes []kernelRoute
	if err := json.Unmarshal(raw, &routes); err != nil {
		return nil, err
	}
	if len(routes) == 0 {
		return nil, nil
	}
	best := slices.MinFunc(routes, func(a, b kernelRoute) int { return cmp.Compare(a.Metric, b.Metric) }).Metric
	weights := map[netip.Addr]int{}
	for _, route := range routes {
		if route.Metric != best {
			continue
		}
		for _, hop := range route.NextHops {
			weights[hop.Gateway] = max(1, hop.Weight)
		}
		if len(route.NextHops) > 0 {
			continue
		}
		address, err := netip.ParseAddr(route.Gateway)
		if err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
		weights[address] = 1
	}
	return weights, nil
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
