// SPDX-License-Identifier: Apache-2.0

// Package netdev finds the node's uplinks: the interfaces through which
// packets for VIPs come in and their replies leave.
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
	// MTU in bytes.
	MTU int
	// MAC is the hardware address as text; empty for an interface without.
	MAC string
	// Ethernet reports whether packets on the interface have an Ethernet header. Those of a
	// tun device or of WireGuard have none, and no program of ours can run there.
	Ethernet bool
	// Carries reports whether the interface, or a member of it, has one of the node's addresses.
	Carries bool
	// Up is true when the interface is up and has carrier.
	Up bool
	// Device is the index of the interface whose driver brings the frames in: that
	// below a VLAN, else the interface itself.
	Device int
	// Members are the indexes of the interfaces that Device consists of, in
	// ascending order, where it is a bond or a team.
	Members []int
	// Tags are those of the interface's frames on Device, outermost first, where it is a VLAN.
	Tags []VLANTag
}

// VLANTag is what tells the frames of a VLAN from others.
type VLANTag struct {
	// Protocol is the tag's EtherType.
	Protocol uint16
	ID       uint16
}

// HoldOff is how long an existing interface stays an uplink after its default
// route or address has gone. So one that goes and comes back, as when a lease is
// renewed, interrupts nothing. A new uplink has as long to get its program.
const HoldOff = 10 * time.Second

// Uplinks is what Find found.
type Uplinks struct {
	// Links are the uplinks, sorted by name.
	Links []Link
	// Leads are the uplinks, by their indexes, by which the kernel sends packets to a BGP
	// peer, by the peer's address. A peer is missing to which no route is known, or none by
	// an uplink.
	Leads map[netip.Addr][]int
	// Again is after how long to look again though nothing changed; 0 means never.
	Again time.Duration
}

// Finder finds the node's uplinks.
type Finder struct {
	patterns []string
	// seen is when an interface, by its index, was last selected.
	seen map[int]time.Time
}

// NewFinder returns a Finder for interface names, or globs of names as in
// path.Match: every interface that exists and matches is an uplink, the
// loopback interface excepted. Without patterns the uplinks are the interfaces
// that carry a default route of the main table, one of the node's addresses or a
// network with a BGP peer.
// In place of a member of a bond or team, that is the uplink.
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
	found.Links, found.Again = f.choose(existing, selected, now)
	found.Leads = leads(peers, found.Links, interfaces)
	return found, nil
}

// isUp reports whether the interface is up and has carrier.
func isUp(attributes *netlink.LinkAttrs) bool {
	return attributes.RawFlags&unix.IFF_UP != 0 && attributes.RawFlags&unix.IFF_LOWER_UP != 0
}

// choose returns those of the existing interfaces that are selected or were so
// a short time ago.
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

// CheckPatterns returns an error that names the first pattern that can match
// nothing because its syntax is wrong.
func CheckPatterns(patterns []string) error {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("%q is neither the name of an interface nor a pattern of names", pattern)
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

// addDefaultRoutes adds the indexes of the interfaces that carry a default route.
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

// retryInterrupted calls list again while the kernel's answer was inconsistent
// since what it listed changed meanwhile (NLM_F_DUMP_INTR).
func retryInterrupted[T any](list func() ([]T, error)) ([]T, error) {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		items, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || attempt == attempts {
			return items, err
		}
	}
}
