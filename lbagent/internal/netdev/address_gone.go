// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
)

// IsAddressGone reports whether no local pod has the address: only the default route leads to it, or its
// neighbour does not answer. A call starts neighbour resolution, and the next call returns the result, so
// it must be true twice in a row. It returns false if the CNI routes to pods by a gateway, as Cilium does
// by default.
func IsAddressGone(address netip.Addr) bool {
	routes, err := netlink.RouteGetWithOptions(address.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 {
		// The last two are what the kernel returns for routes of type blackhole and prohibit.
		return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES)
	}
	route := &routes[0]
	switch {
	case route.Type == unix.RTN_LOCAL:
		return false
	case route.Type != unix.RTN_UNICAST || isDefault(*route):
		return true
	case route.Gw != nil || route.Via != nil || len(route.MultiPath) > 0:
		return false
	}
	return isUnanswered(fib.NeighbourKey{Interface: route.LinkIndex, Address: address})
}

// isUnanswered reports whether the kernel asks for a neighbour that has not answered. Otherwise it
// has the kernel confirm the neighbour.
func isUnanswered(key fib.NeighbourKey) bool {
	const unanswered, settled = netlink.NUD_FAILED | netlink.NUD_INCOMPLETE, netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_PROBE
	list, err := retryInterrupted(func() ([]netlink.Neigh, error) {
		return netlink.NeighList(key.Interface, neighbourFamily(key.Address))
	})
	if err != nil {
		return false
	}
	for i := range list {
		neighbour := &list[i]
		if found, ok := neighbourKey(neighbour); !ok || found != key {
			continue
		}
		if neighbour.State&(unanswered|settled) == 0 {
			// By itself it would wait for five seconds (delay_first_probe_time).
			neighbour.State = netlink.NUD_PROBE
			_ = netlink.NeighSet(neighbour)
		}
		if neighbour.State&unanswered != 0 {
			_ = useNeighbour(key)
		}
		return neighbour.State&unanswered != 0
	}
	_ = useNeighbour(key)
	return false
}
