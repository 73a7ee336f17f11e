// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/nexthop"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// scope is how much of a view a change makes doubtful.
type scope int

const (
	nothing scope = iota
	// neighbours only: the view has been told of the change itself.
	neighbours
	everything
)

// view is what was read from the kernel, as far as the targets depend on it.
type view struct {
	handle  *netlink.Handle
	network nexthop.Network
	targets map[program.NodeID]nexthop.Target
	// interfaces are those that routes to the targets lead to and those below
	// them, also where they do not exist.
	interfaces map[int]struct{}
	needed     map[nexthop.NeighbourKey]struct{}
}

func newView() (*view, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &view{handle: handle}, nil
}

func (v *view) close() { v.handle.Close() }

// read brings the view up to date for these targets and devices.
func (v *view) read(targets map[program.NodeID]nexthop.Target, devices map[int]struct{}, changed scope) error {
	v.targets, v.network.Devices = targets, devices
	if changed == everything {
		v.readRoutes()
		if err := v.readInterfaces(); err != nil {
			return err
		}
		if err := v.readNeighbours(); err != nil {
			return err
		}
	}
	v.needed = v.network.Needed(targets)
	return nil
}

// readRoutes asks for the route of each target. What the kernel has no route for,
// or none that an Ethernet header alone describes, has none here either.
func (v *view) readRoutes() {
	v.network.Routes = make(map[nexthop.Target]nexthop.Route, len(v.targets))
	for _, target := range v.targets {
		options := &netlink.RouteGetOptions{SrcAddr: target.Source.AsSlice()}
		routes, err := v.handle.RouteGetWithOptions(target.Destination.AsSlice(), options)
		if err != nil || len(routes) != 1 {
			continue
		}
		if route, ok := plainRoute(&routes[0]); ok {
			v.network.Routes[target] = route
		}
	}
}

func plainRoute(route *netlink.Route) (nexthop.Route, bool) {
	if route.Type != unix.RTN_UNICAST || route.Encap != nil || route.MPLSDst != nil || route.NewDst != nil {
		return nexthop.Route{}, false
	}
	result := nexthop.Route{Interface: route.LinkIndex, MTU: route.MTU}
	gateway := route.Gw
	if via, ok := route.Via.(*netlink.Via); ok {
		gateway = via.Addr
	}
	if address, ok := netip.AddrFromSlice(gateway); ok {
		result.Gateway = address.Unmap()
	}
	return result, result.Interface > 0
}

func (v *view) readInterfaces() error {
	v.interfaces = map[int]struct{}{}
	v.network.Interfaces = map[int]nexthop.Interface{}
	for _, route := range v.network.Routes {
		for index := route.Interface; index > 0; index = v.network.Interfaces[index].Lower {
			if _, known := v.interfaces[index]; known {
				break
			}
			v.interfaces[index] = struct{}{}
			link, err := v.handle.LinkByIndex(index)
			if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) || gone(err) {
				break
			}
			if err != nil {
				return fmt.Errorf("read interface %d: %w", index, err)
			}
			v.network.Interfaces[index] = hopInterface(link)
		}
	}
	return nil
}

// hopInterface describes the interface. One that is of no use, such as a VLAN of
// a provider bridge (802.1ad), has no address.
func hopInterface(link netlink.Link) nexthop.Interface {
	attributes := link.Attrs()
	result := nexthop.Interface{MTU: attributes.MTU, Up: isUp(attributes)}
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

func (v *view) readNeighbours() error {
	v.network.Neighbours = map[nexthop.NeighbourKey]nexthop.Neighbour{}
	for index := range v.interfaces {
		list, err := retryInterrupted(func() ([]netlink.Neigh, error) {
			return v.handle.NeighList(index, netlink.FAMILY_ALL)
		})
		if err != nil && !gone(err) {
			return fmt.Errorf("list neighbours on interface %d: %w", index, err)
		}
		for i := range list {
			if key, ok := neighbourKey(&list[i]); ok {
				v.network.Neighbours[key] = neighbourOf(&list[i])
			}
		}
	}
	return nil
}

func neighbourKey(neighbour *netlink.Neigh) (nexthop.NeighbourKey, bool) {
	address, ok := netip.AddrFromSlice(neighbour.IP)
	inet := neighbour.Family == unix.AF_INET || neighbour.Family == unix.AF_INET6
	proxy := neighbour.Flags&netlink.NTF_PROXY != 0
	return nexthop.NeighbourKey{Interface: neighbour.LinkIndex, Address: address}, ok && inet && !proxy
}

func neighbourOf(neighbour *netlink.Neigh) nexthop.Neighbour {
	const valid = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_PROBE | netlink.NUD_DELAY
	var result nexthop.Neighbour
	if len(neighbour.HardwareAddr) == len(result.MAC) {
		result.MAC = [6]byte(neighbour.HardwareAddr)
		switch {
		case neighbour.State&valid != 0:
			result.State = nexthop.Confirmed
		case neighbour.State&netlink.NUD_STALE != 0:
			result.State = nexthop.Stale
		}
	}
	if neighbour.State&netlink.NUD_INCOMPLETE != 0 {
		result.State = nexthop.Resolving
	}
	return result
}

// resolve asks the kernel for the neighbours that hops lack, and to confirm those
// that were not confirmed for a while. It does not wait for either.
func (v *view) resolve() error {
	for key := range v.needed {
		switch v.network.Neighbours[key].State {
		case nexthop.Unresolved, nexthop.Stale:
		default:
			continue
		}
		if err := v.use(key); err != nil && !gone(err) {
			return fmt.Errorf("resolve neighbour %s on interface %d: %w", key.Address, key.Interface, err)
		}
	}
	return nil
}

// use makes the kernel treat the neighbour as it does when it sends a packet to it.
func (v *view) use(key nexthop.NeighbourKey) error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	family := unix.AF_INET
	if key.Address.Is6() {
		family = unix.AF_INET6
	}
	request.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(key.Interface), Flags: netlink.NTF_USE})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, key.Address.AsSlice()))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// gone tells whether the error says that the interface is not there, or down.
func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOENT)
}

func (v *view) linkChanged(update netlink.LinkUpdate) scope {
	if _, relevant := v.interfaces[int(update.Index)]; relevant {
		return everything
	}
	return nothing
}

// routeChanged tells whether the route is one that a packet to a target might
// take, or that of this node's own address.
func (v *view) routeChanged(update netlink.RouteUpdate) scope {
	prefix, ok := destination(&update.Route)
	if !ok {
		return everything
	}
	for _, target := range v.targets {
		if prefix.Contains(target.Destination) || prefix.Contains(target.Source) {
			return everything
		}
	}
	return nothing
}

// destination is false for a default route whose family is not told.
func destination(route *netlink.Route) (netip.Prefix, bool) {
	if route.Dst == nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(route.Dst.IP)
	bits, _ := route.Dst.Mask.Size()
	return netip.PrefixFrom(address, bits), ok
}

func (v *view) neighbourChanged(update netlink.NeighUpdate) scope {
	key, ok := neighbourKey(&update.Neigh)
	if _, relevant := v.interfaces[key.Interface]; !ok || !relevant {
		return nothing
	}
	former := v.network.Neighbours[key]
	current := nexthop.Neighbour{}
	if update.Type == unix.RTM_NEWNEIGH {
		current = neighbourOf(&update.Neigh)
		v.network.Neighbours[key] = current
	} else {
		delete(v.network.Neighbours, key)
	}
	if _, needed := v.needed[key]; !needed || former == current {
		return nothing
	}
	return neighbours
}
