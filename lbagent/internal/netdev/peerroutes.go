// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// peerPaths returns the uplinks of the kernel's route to each peer. All next hops of a multipath route are
// included, because the router may send by any of them.
func peerPaths(peers []netip.Addr, uplinks []Link, interfaces map[int]iface) map[netip.Addr][]int {
	found := map[netip.Addr][]int{}
	for _, peer := range peers {
		if zone := peer.Zone(); zone != "" {
			// The zone of a link-local address is its interface.
			for index := range interfaces {
				if interfaces[index].link.Name == zone {
					found[peer] = append(found[peer], aggregateOf(interfaces, index))
				}
			}
			continue
		}
		routes, err := netlink.RouteGetWithOptions(peer.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		if err != nil {
			// Without a route there is no session with the peer either.
			continue
		}
		for i := range routes {
			for _, index := range outgoing(&routes[i]) {
				index = aggregateOf(interfaces, index)
				isUplink := slices.ContainsFunc(uplinks, func(l Link) bool { return l.Index == index })
				if isUplink && !slices.Contains(found[peer], index) {
					found[peer] = append(found[peer], index)
				}
			}
		}
	}
	return found
}

func outgoing(route *netlink.Route) []int {
	if route.Type != unix.RTN_UNICAST {
		return nil
	}
	var indexes []int
	if route.LinkIndex > 0 {
		indexes = append(indexes, route.LinkIndex)
	}
	for _, hop := range route.MultiPath {
		indexes = append(indexes, hop.LinkIndex)
	}
	return indexes
}
