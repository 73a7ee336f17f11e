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

// The kernel limits the neighbors of a family to 1,024 by default (gc_thresh3 in ip-sysctl), except
// externally learned ones (NTF_EXT_LEARNED). It keeps managed ones (NTF_EXT_MANAGED, Linux 5.16) resolved.
// Both flags allow any number of nodes on a link.
const (
	managedFlags    = netlink.NTF_EXT_LEARNED
	managedFlagsExt = netlink.NTF_EXT_MANAGED
	// neighbourProtocol marks the entries that Millrace adds (NDA_PROTOCOL). The value is unused by
	// routing protocols.
	neighbourProtocol = 77
	// neighbourBuffer is the socket buffer for events in bytes. The kernel counts about a thousand per
	// event and confirms all managed entries at once, every five seconds.
	neighbourBuffer = 16 << 20
)

// subscribeNeighbours sends events until done is closed. The channel is closed when events were lost.
func subscribeNeighbours(changes chan<- netlink.NeighUpdate, done <-chan struct{}) error {
	err := netlink.NeighSubscribeWithOptions(changes, done, netlink.NeighSubscribeOptions{
		// The closed channel is sufficient.
		ErrorCallback: func(error) {}, ReceiveBufferSize: neighbourBuffer, ReceiveBufferForceSize: true,
	})
	if err != nil {
		return fmt.Errorf("subscribe to changes of neighbours: %w", err)
	}
	return nil
}

func (c *fibCache) readNeighbours() error {
	list, err := listNeighbours()
	if err != nil {
		return err
	}
	c.network.Neighbours, c.managed = map[fib.NeighbourKey]fib.Neighbour{}, map[fib.NeighbourKey]struct{}{}
	for i := range list {
		entry := &list[i]
		key, ok := neighbourKey(&entry.Neigh)
		if !ok {
			continue
		}
		if entry.protocol == neighbourProtocol {
			c.managed[key] = struct{}{}
		}
		if _, relevant := c.interfaces[key.Interface]; relevant {
			c.network.Neighbours[key] = neighbourOf(&entry.Neigh)
		}
	}
	return nil
}

type neighbourEntry struct {
	netlink.Neigh
	protocol uint8
}

func listNeighbours() ([]neighbourEntry, error) {
	messages, err := retryInterrupted(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		request.AddData(&netlink.Ndmsg{})
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	})
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	entries := make([]neighbourEntry, 0, len(messages))
	for _, message := range messages {
		entry, err := parseNeighbour(message)
		if err != nil {
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// parseNeighbour parses an entry with its protocol, which the library's Neigh does not contain.
func parseNeighbour(message []byte) (neighbourEntry, error) {
	neighbour, err := netlink.NeighDeserialize(message)
	if err != nil {
		return neighbourEntry{}, err
	}
	entry := neighbourEntry{Neigh: *neighbour}
	attributes, err := nl.ParseRouteAttr(message[(&netlink.Ndmsg{}).Len():])
	for _, attribute := range attributes {
		if attribute.Attr.Type == netlink.NDA_PROTOCOL && len(attribute.Value) == 1 {
			entry.protocol = attribute.Value[0]
		}
	}
	return entry, err
}

func neighbourKey(neighbour *netlink.Neigh) (fib.NeighbourKey, bool) {
	address, ok := netip.AddrFromSlice(neighbour.IP)
	inet := neighbour.Family == unix.AF_INET || neighbour.Family == unix.AF_INET6
	proxy := neighbour.Flags&netlink.NTF_PROXY != 0
	return fib.NeighbourKey{Interface: neighbour.LinkIndex, Address: address}, ok && inet && !proxy
}

func neighbourOf(neighbour *netlink.Neigh) fib.Neighbour {
	const (
		fixed = netlink.NUD_PERMANENT | netlink.NUD_NOARP
		valid = fixed | netlink.NUD_REACHABLE | netlink.NUD_PROBE | netlink.NUD_DELAY | netlink.NUD_STALE
	)
	result := fib.Neighbour{
		Persistent: neighbour.State&fixed != 0 ||
			neighbour.Flags&managedFlags != 0 && neighbour.FlagsExt&managedFlagsExt != 0,
	}
	if len(neighbour.HardwareAddr) == len(result.MAC) && neighbour.State&valid != 0 {
		result.MAC = [6]byte(neighbour.HardwareAddr)
	}
	return result
}

// resolve adds the neighbors that hops need to the kernel, and removes its other entries. It does not
// wait for resolution. An error of one neighbor does not affect others.
func (c *fibCache) resolve() error {
	var failures []error
	for key := range c.needed {
		if c.network.Neighbours[key].Persistent {
			continue
		}
		if err := manageNeighbour(key); err != nil && !isNotFound(err) {
			failures = append(failures, fmt.Errorf("resolve neighbour %s on interface %d: %w", key.Address, key.Interface, err))
			continue
		}
		c.managed[key] = struct{}{}
	}
	for key := range c.managed {
		if _, needed := c.needed[key]; needed {
			continue
		}
		if err := removeNeighbour(key); err != nil && !isNotFound(err) {
			failures = append(failures, fmt.Errorf("remove neighbour %s on interface %d: %w", key.Address, key.Interface, err))
			continue
		}
		delete(c.managed, key)
	}
	// Thousands may fail for the same reason.
	return errors.Join(failures[:min(1, len(failures))]...)
}

// manageNeighbour adds a managed entry, which the kernel keeps resolved.
func manageNeighbour(key fib.NeighbourKey) error {
	return addNeighbour(key, managedFlags,
		nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(managedFlagsExt)),
		nl.NewRtAttr(netlink.NDA_PROTOCOL, []byte{neighbourProtocol}))
}

// useNeighbour makes the kernel treat the neighbor like the next hop of a sent packet.
func useNeighbour(key fib.NeighbourKey) error { return addNeighbour(key, netlink.NTF_USE) }

func addNeighbour(key fib.NeighbourKey, flags uint8, attributes ...*nl.RtAttr) error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	request.AddData(&netlink.Ndmsg{Family: uint8(neighbourFamily(key.Address)), Index: uint32(key.Interface), Flags: flags})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, key.Address.AsSlice()))
	for _, attribute := range attributes {
		request.AddData(attribute)
	}
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func removeNeighbour(key fib.NeighbourKey) error {
	request := nl.NewNetlinkRequest(unix.RTM_DELNEIGH, unix.NLM_F_ACK)
	request.AddData(&netlink.Ndmsg{Family: uint8(neighbourFamily(key.Address)), Index: uint32(key.Interface)})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, key.Address.AsSlice()))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// RemoveNeighbours removes the entries that Millrace has added. Other traffic resolves them again.
func RemoveNeighbours() error {
	left, err := ManagedNeighbours()
	if err != nil {
		return err
	}
	var failures []error
	for _, key := range left {
		if err := removeNeighbour(key); err != nil && !isNotFound(err) {
			failures = append(failures, fmt.Errorf("remove neighbour %s on interface %d: %w", key.Address, key.Interface, err))
		}
	}
	return errors.Join(failures...)
}

// ManagedNeighbours returns the entries that Millrace has added.
func ManagedNeighbours() ([]fib.NeighbourKey, error) {
	list, err := listNeighbours()
	if err != nil {
		return nil, err
	}
	var kept []fib.NeighbourKey
	for i := range list {
		if key, ok := neighbourKey(&list[i].Neigh); ok && list[i].protocol == neighbourProtocol {
			kept = append(kept, key)
		}
	}
	return kept, nil
}

func neighbourFamily(address netip.Addr) int {
	if address.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// neighbourChanged updates an entry. Hops depend only on its hardware address: state changes by the
// kernel's frequent confirmations do not affect them.
func (c *fibCache) neighbourChanged(update netlink.NeighUpdate) scope {
	key, ok := neighbourKey(&update.Neigh)
	if _, relevant := c.interfaces[key.Interface]; !ok || !relevant {
		return nothing
	}
	previous := c.network.Neighbours[key]
	current := fib.Neighbour{}
	if update.Type == unix.RTM_NEWNEIGH {
		current = neighbourOf(&update.Neigh)
		c.network.Neighbours[key] = current
	} else {
		delete(c.network.Neighbours, key)
	}
	if _, needed := c.needed[key]; !needed || previous.MAC == current.MAC {
		return nothing
	}
	return neighbours
}
