// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
)

// readPaths computes the interfaces that the kernel may use for each target: all next hops of its route and
// of routes with the same prefix, but not of shorter prefixes such as a default route.
func (c *fibCache) readPaths() error {
	table, err := readPrefixes()
	if err != nil {
		return err
	}
	c.network.Paths = make(map[fib.Target][]int, len(c.targets))
	for _, target := range c.targets {
		options := &netlink.RouteGetOptions{SrcAddr: target.Source.AsSlice(), FIBMatch: true}
		// Without a route the table is used.
		routes, err := c.handle.RouteGetWithOptions(target.Destination.AsSlice(), options)
		links := table.to(target.Destination)
		for i := range routes {
			if err == nil {
				links = append(links, outgoing(&routes[i])...)
			}
		}
		c.network.Paths[target] = links
	}
	return nil
}

type prefixes struct {
	links map[netip.Prefix][]int
	// lengths are the prefix lengths, longest first; the key is true for IPv4.
	lengths map[bool][]int
}

func readPrefixes() (*prefixes, error) {
	table := &prefixes{links: map[netip.Prefix][]int{}, lengths: map[bool][]int{}}
	for family, anywhere := range map[int]netip.Addr{
		netlink.FAMILY_V4: netip.IPv4Unspecified(), netlink.FAMILY_V6: netip.IPv6Unspecified(),
	} {
		routes, err := retryInterrupted(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			prefix, ok := destination(&routes[i])
			if !ok {
				prefix = netip.PrefixFrom(anywhere, 0)
			}
			table.add(prefix, outgoing(&routes[i]))
		}
	}
	for _, lengths := range table.lengths {
		slices.SortFunc(lengths, func(a, b int) int { return b - a })
	}
	return table, nil
}

func (p *prefixes) add(prefix netip.Prefix, links []int) {
	if len(links) == 0 {
		return
	}
	is4 := prefix.Addr().Is4()
	if !slices.Contains(p.lengths[is4], prefix.Bits()) {
		p.lengths[is4] = append(p.lengths[is4], prefix.Bits())
	}
	p.links[prefix.Masked()] = append(p.links[prefix.Masked()], links...)
}

func (p *prefixes) to(address netip.Addr) []int {
	for _, bits := range p.lengths[address.Is4()] {
		if links := p.links[netip.PrefixFrom(address, bits).Masked()]; len(links) > 0 {
			return slices.Clone(links)
		}
	}
	return nil
}
