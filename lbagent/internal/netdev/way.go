// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Way is where packets to a router leave.
type Way struct {
	Interface int
	// MAC is the router's, or that of the next one on the way to it.
	MAC [6]byte
	MTU int
}

var errUnresolved = errors.New("the kernel knows no Ethernet address of it")

// WayTo asks the kernel for the way to a router, whose address has a zone where it is link-local.
func WayTo(router netip.Addr) (Way, error) {
	hop := router.WithZone("")
	routes, err := netlink.RouteGetWithOptions(hop.AsSlice(), &netlink.RouteGetOptions{Oif: router.Zone()})
	if err != nil || len(routes) == 0 {
		return Way{}, fmt.Errorf("look up the route to router %s: %w", router, err)
	}
	if gateway, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		hop = gateway.Unmap()
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return Way{}, fmt.Errorf("look up the interface to router %s: %w", router, err)
	}
	neighbours, err := retryInterrupted(func() ([]netlink.Neigh, error) {
		return netlink.NeighList(link.Attrs().Index, neighbourFamily(hop))
	})
	if err != nil {
		return Way{}, fmt.Errorf("list the neighbours on %s: %w", link.Attrs().Name, err)
	}
	for i := range neighbours {
		key, ok := neighbourKey(&neighbours[i])
		mac := neighbourOf(&neighbours[i]).MAC
		if ok && key.Address == hop && mac != [6]byte{} {
			return Way{link.Attrs().Index, mac, link.Attrs().MTU}, nil
		}
	}
	return Way{}, fmt.Errorf("find router %s on %s: %w", hop, link.Attrs().Name, errUnresolved)
}
