// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// scope is the part of a fibCache that a change invalidates.
type scope int

const (
	nothing scope = iota
	// neighbours is a change that the cache already includes.
	neighbours
	everything
)

type fibCache struct {
	handle  *netlink.Handle
	network fib.Network
	targets map[forwarding.NodeID]fib.Target
	// interfaces are the interfaces of routes to the targets and their lower interfaces, including
	// missing ones.
	interfaces map[int]struct{}
	needed     map[fib.NeighbourKey]struct{}
	// managed are the neighbors that the kernel was requested to keep resolved.
	managed map[fib.NeighbourKey]struct{}
}

func newFIBCache() (*fibCache, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &fibCache{handle: handle}, nil
}

func (c *fibCache) close() { c.handle.Close() }

func (c *fibCache) read(targets map[forwarding.NodeID]fib.Target, devices map[int][]int, changed scope) error {
	c.targets, c.network.Devices = targets, devices
	if changed == everything {
		c.readRoutes()
		if err := c.readPaths(); err != nil {
			return err
		}
		if err := c.readInterfaces(); err != nil {
			return err
		}
		if err := c.readNeighbours(); err != nil {
			return err
		}
	}
	c.needed = c.network.Needed(targets)
	return nil
}

// readRoutes looks up the route of each target. It ignores routes that need more than an Ethernet header.
func (c *fibCache) readRoutes() {
	c.network.Routes = make(map[fib.Target]fib.Route, len(c.targets))
	for _, target := range c.targets {
		options := &netlink.RouteGetOptions{SrcAddr: target.Source.AsSlice()}
		routes, err := c.handle.RouteGetWithOptions(target.Destination.AsSlice(), options)
		if err != nil || len(routes) != 1 {
			continue
		}
		if route, ok := plainRoute(&routes[0]); ok {
			c.network.Routes[target] = route
		}
	}
}

func (c *fibCache) links() []int {
	links := map[int]struct{}{}
	for _, route := range c.network.Routes {
		links[route.Interface] = struct{}{}
	}
	for _, leads := range c.network.Paths {
		for _, link := range leads {
			links[link] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(links))
}

func plainRoute(route *netlink.Route) (fib.Route, bool) {
	if route.Type != unix.RTN_UNICAST || route.Encap != nil || route.MPLSDst != nil || route.NewDst != nil {
		return fib.Route{}, false
	}
	result := fib.Route{Interface: route.LinkIndex, MTU: route.MTU}
	gateway := route.Gw
	if via, ok := route.Via.(*netlink.Via); ok {
		gateway = via.Addr
	}
	if address, ok := netip.AddrFromSlice(gateway); ok {
		result.Gateway = address.Unmap()
	}
	return result, result.Interface > 0
}

func (c *fibCache) readInterfaces() error {
	c.interfaces = map[int]struct{}{}
	c.network.Interfaces = map[int]fib.Interface{}
	for _, first := range c.links() {
		for index := first; index > 0; index = c.network.Interfaces[index].Lower {
			if _, known := c.interfaces[index]; known {
				break
			}
			c.interfaces[index] = struct{}{}
			link, err := c.handle.LinkByIndex(index)
			if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) || isNotFound(err) {
				break
			}
			if err != nil {
				return fmt.Errorf("read interface %d: %w", index, err)
			}
			c.network.Interfaces[index] = hopInterface(link)
		}
	}
	return nil
}

// hopInterface converts an interface. An unusable one, such as a VLAN of a provider bridge (802.1ad), has
// no MAC.
func hopInterface(link netlink.Link) fib.Interface {
	attributes := link.Attrs()
	result := fib.Interface{MTU: attributes.MTU, Up: isUp(attributes)}
	if len(attributes.HardwareAddr) == len(result.MAC) {
		result.MAC = [6]byte(attributes.HardwareAddr)
	}
	if vlan, ok := link.(*netlink.Vlan); ok {
		result.Lower, result.VLAN = attributes.ParentIndex, uint16(vlan.VlanId)
		if vlan.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q {
			result.MAC = [6]byte{}
		}
	}
	return result
}

func isNotFound(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOENT)
}

func (c *fibCache) linkChanged(update netlink.LinkUpdate) scope {
	if _, relevant := c.interfaces[int(update.Index)]; relevant {
		return everything
	}
	return nothing
}

func (c *fibCache) routeChanged(update netlink.RouteUpdate) scope {
	prefix, ok := destination(&update.Route)
	if !ok {
		return everything
	}
	for _, target := range c.targets {
		if prefix.Contains(target.Destination) || prefix.Contains(target.Source) {
			return everything
		}
	}
	return nothing
}

// destination returns false for a default route, because the library returns an IPv6 prefix even for
// IPv4.
func destination(route *netlink.Route) (netip.Prefix, bool) {
	if route.Dst == nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(route.Dst.IP)
	bits, _ := route.Dst.Mask.Size()
	return netip.PrefixFrom(address, bits), ok && bits > 0
}
