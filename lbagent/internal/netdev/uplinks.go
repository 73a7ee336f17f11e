// SPDX-License-Identifier: Apache-2.0

// Package netdev reads interfaces, routes and neighbors from the kernel, and finds the node's uplinks:
// the interfaces that receive packets for VIPs and send replies.
package netdev

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network interface.
type Link struct {
	Name  string
	Index int
	MTU   int
	MAC   string
	// Ethernet reports whether packets have an Ethernet header. The programs cannot run on interfaces
	// without, such as tun and WireGuard.
	Ethernet bool
	// HasAddress reports whether the interface or a member has one of the node's addresses.
	HasAddress bool
	Up         bool
	// Device is the index of the interface whose driver receives the frames: the one below a VLAN, else
	// the interface itself.
	Device int
	// Members are the indexes of Device's members, sorted, if it is a bond or team.
	Members []int
	// Tags are the VLAN tags of the interface's frames on Device, outermost first.
	Tags []VLANTag
}

// VLANTag is the tag of a VLAN.
type VLANTag struct {
	Protocol uint16
	ID       uint16
}

// HoldOff is how long an uplink outlives its default route or address, for example during a DHCP renewal,
// and how long a new uplink may lack its program.
const HoldOff = 10 * time.Second

// Uplinks is the result of Find.
type Uplinks struct {
	Links []Link
	// PeerUplinks maps the address of a BGP peer to the indexes of the uplinks with the kernel's route to it.
	// Peers without a route by an uplink are missing.
	PeerUplinks  map[netip.Addr][]int
	RequeueAfter time.Duration
}

// Finder finds the node's uplinks.
type Finder struct {
	patterns []string
	// seen is the time when each interface, by index, was last selected.
	seen map[int]time.Time
}

// NewFinder returns a Finder of interfaces that match names or path.Match patterns, except loopback.
// Without patterns, uplinks have a default route of the main table, a node address, or a network with a BGP
// peer. A bond or team replaces its members.
func NewFinder(patterns []string) *Finder {
	return &Finder{patterns: patterns, seen: map[int]time.Time{}}
}

// Find returns the uplinks of a node with the given addresses and BGP peers.
func (f *Finder) Find(addresses, peers []netip.Addr, now time.Time) (*Uplinks, error) {
	links, err := retryInterrupted(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	networks, err := f.Networks()
	if err != nil {
		return nil, err
	}
	holding, reaching := holders(networks, addresses), reaching(networks, peers)
	carrying, selected := map[int]bool{}, map[int]bool{}
	if len(f.patterns) == 0 {
		if err := addDefaultRoutes(selected); err != nil {
			return nil, err
		}
	}
	interfaces := map[int]iface{}
	for _, link := range links {
		if link.Attrs().RawFlags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		name, index := link.Attrs().Name, link.Attrs().Index
		interfaces[index] = describe(link)
		if holding[name] {
			carrying[index] = true
		}
		if matches(f.patterns, name) || len(f.patterns) == 0 && (holding[name] || reaching[name]) {
			selected[index] = true
		}
	}
	existing, selected := stack(interfaces, selected, carrying)
	found := &Uplinks{}
	found.Links, found.RequeueAfter = f.choose(existing, selected, now)
	found.PeerUplinks = peerPaths(peers, found.Links, interfaces)
	return found, nil
}

func isUp(attributes *netlink.LinkAttrs) bool {
	return attributes.RawFlags&unix.IFF_UP != 0 && attributes.RawFlags&unix.IFF_LOWER_UP != 0
}

func (f *Finder) choose(existing []Link, selected map[int]bool, now time.Time) (uplinks []Link, again time.Duration) {
	seen := map[int]time.Time{}
	for _, link := range existing {
		last, known := f.seen[link.Index]
		if selected[link.Index] {
			last, known = now, true
		}
		left := HoldOff - now.Sub(last)
		if !known || left <= 0 {
			continue
		}
		if !selected[link.Index] && (again == 0 || left < again) {
			again = left
		}
		seen[link.Index] = last
		uplinks = append(uplinks, link)
	}
	f.seen = seen
	slices.SortFunc(uplinks, func(a, b Link) int { return cmp.Compare(a.Name, b.Name) })
	return uplinks, again
}

// CheckPatterns returns an error for the first pattern with invalid syntax.
func CheckPatterns(patterns []string) error {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("%q is neither an interface name nor a pattern", pattern)
		}
	}
	return nil
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}

func addDefaultRoutes(indexes map[int]bool) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := retryInterrupted(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, route := range routes {
			if !isDefault(route) {
				continue
			}
			if route.LinkIndex > 0 {
				indexes[route.LinkIndex] = true
			}
			for _, hop := range route.MultiPath {
				indexes[hop.LinkIndex] = true
			}
		}
	}
	return nil
}

// isDefault reports whether a route is a unicast default route.
func isDefault(route netlink.Route) bool {
	if route.Type != unix.RTN_UNICAST {
		return false
	}
	if route.Dst == nil {
		return true
	}
	ones, _ := route.Dst.Mask.Size()
	return ones == 0 && route.Dst.IP.IsUnspecified()
}

// retryInterrupted retries list if its result is inconsistent because of a concurrent change
// (NLM_F_DUMP_INTR).
func retryInterrupted[T any](list func() ([]T, error)) ([]T, error) {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		items, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || attempt == attempts {
			return items, err
		}
	}
}
