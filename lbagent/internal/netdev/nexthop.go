// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
)

// NextHop is the next hop to a router.
type NextHop struct {
	Interface int
	MAC       [6]byte
	MTU       int
}

var errUnresolved = errors.New("the kernel has no Ethernet address for it")

// NextHopTo looks up the next hop to a router. A link-local address must have a zone.
func NextHopTo(router netip.Addr) (NextHop, error) {
	hop := router.WithZone("")
	routes, err := netlink.RouteGetWithOptions(hop.AsSlice(), &netlink.RouteGetOptions{Oif: router.Zone()})
	if err != nil || len(routes) == 0 {
		return NextHop{}, fmt.Errorf("look up the route to router %s: %w", router, err)
	}
	if gateway, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		hop = gateway.Unmap()
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return NextHop{}, fmt.Errorf("look up the interface to router %s: %w", router, err)
	}
	neighbour, err := neighbourAt(fib.NeighbourKey{Interface: link.Attrs().Index, Address: hop})
	if err != nil {
		return NextHop{}, fmt.Errorf("look up router %s on %s: %w", hop, link.Attrs().Name, err)
	}
	if neighbour.MAC == [6]byte{} {
		return NextHop{}, fmt.Errorf("look up router %s on %s: %w", hop, link.Attrs().Name, errUnresolved)
	}
	return NextHop{link.Attrs().Index, neighbour.MAC, link.Attrs().MTU}, nil
}

// neighbourAt looks up one neighbor. The functions of the netlink library list all neighbors of a link.
func neighbourAt(key fib.NeighbourKey) (fib.Neighbour, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.AddData(&netlink.Ndmsg{Family: uint8(neighbourFamily(key.Address)), Index: uint32(key.Interface)})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, key.Address.AsSlice()))
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) || err == nil && len(answers) == 0 {
		return fib.Neighbour{}, errUnresolved
	}
	if err != nil {
		return fib.Neighbour{}, err
	}
	neighbour, err := netlink.NeighDeserialize(answers[0])
	if err != nil {
		return fib.Neighbour{}, err
	}
	return neighbourOf(neighbour), nil
}
