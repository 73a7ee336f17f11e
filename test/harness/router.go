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

// NodeAddress returns the fabric address of node i (from 1) of the given family.
func NodeAddress(i int, family netip.Addr) netip.Addr {
	if family.Is4() {
		return netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:0:1::%d", 10+i))
}

// kernelRoute is an entry of `ip -json route show`.
type kernelRoute struct {
	Metric   int    `json:"metric"`
	Gateway  string `json:"gateway"`
	NextHops []struct {
		Gateway netip.Addr `json:"gateway"`
		Weight  int        `json:"weight"`
	} `json:"nexthops"`
}

// NextHops returns the VIP's next hops in a router's kernel, sorted. FRR's BGP table may be ahead of them.
func (c *Cluster) NextHops(ctx context.Context, router string, vip netip.Addr) ([]netip.Addr, error) {
	weights, err := c.Weights(ctx, router, vip)
	return slices.SortedFunc(maps.Keys(weights), netip.Addr.Compare), err
}

// Weights returns the weights of a VIP's next hops in a router's kernel.
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

func family(address netip.Addr) string {
	if address.Is4() {
		return "-4"
	}
	return "-6"
}

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
