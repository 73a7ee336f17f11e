// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Gateways returns the next hops of the main table's default routes with the lowest metric, by netlink
// family (FAMILY_V4, FAMILY_V6), sorted. Link-local next hops have the interface as zone.
func Gateways() (map[int][]netip.Addr, error) {
	gateways := map[int][]netip.Addr{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := retryInterrupted(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list the default routes: %w", err)
		}
		routes = slices.DeleteFunc(routes, func(route netlink.Route) bool { return !isDefault(route) })
		for i := range routes {
			if slices.ContainsFunc(routes, func(other netlink.Route) bool { return other.Priority < routes[i].Priority }) {
				continue
			}
			gateways[family] = append(gateways[family], gatewaysOf(&routes[i])...)
		}
		slices.SortFunc(gateways[family], netip.Addr.Compare)
		gateways[family] = slices.Compact(gateways[family])
	}
	return gateways, nil
}

func gatewaysOf(route *netlink.Route) []netip.Addr {
	gateways := []netip.Addr{gatewayOf(route.Gw, route.LinkIndex)}
	for _, hop := range route.MultiPath {
		gateways = append(gateways, gatewayOf(hop.Gw, hop.LinkIndex))
	}
	return slices.DeleteFunc(gateways, func(gateway netip.Addr) bool { return !gateway.IsValid() })
}

// gatewayOf returns an invalid address if there is no gateway, or if the interface of a link-local
// gateway does not exist.
func gatewayOf(ip net.IP, index int) netip.Addr {
	address, _ := netip.AddrFromSlice(ip)
	address = address.Unmap()
	if !address.Is6() || !address.IsLinkLocalUnicast() {
		return address
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return netip.Addr{}
	}
	return address.WithZone(link.Attrs().Name)
}
