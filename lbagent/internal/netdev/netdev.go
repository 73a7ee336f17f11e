// SPDX-License-Identifier: Apache-2.0

// Package netdev finds the node's uplinks: the interfaces through which
// packets for VIPs come in and their replies leave.
package netdev

import (
	"cmp"
	"context"
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
	// Up is true when the interface is up and has carrier.
	Up bool
}

// Uplinks returns the uplinks, sorted by name.
//
// patterns are interface names, or globs of names as in path.Match; every
// interface that exists and matches is an uplink, the loopback interface
// excepted. Without patterns the uplinks are the interfaces that carry a
// default route of the main table or one of addresses, the node's own.
func Uplinks(patterns []string, addresses []netip.Addr) ([]Link, error) {
	links, err := retryInterrupted(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var selected func(netlink.Link) bool
	if len(patterns) > 0 {
		selected = func(link netlink.Link) bool { return matches(patterns, link.Attrs().Name) }
	} else {
		indexes, err := carriers(addresses)
		if err != nil {
			return nil, err
		}
		selected = func(link netlink.Link) bool { return indexes[link.Attrs().Index] }
	}
	var uplinks []Link
	for _, link := range links {
		attributes := link.Attrs()
		if attributes.RawFlags&unix.IFF_LOOPBACK != 0 || !selected(link) {
			continue
		}
		uplinks = append(uplinks, Link{
			Name:  attributes.Name,
			Index: attributes.Index,
			MTU:   attributes.MTU,
			MAC:   attributes.HardwareAddr.String(),
			Up:    attributes.RawFlags&unix.IFF_UP != 0 && attributes.RawFlags&unix.IFF_LOWER_UP != 0,
		})
	}
	slices.SortFunc(uplinks, func(a, b Link) int { return cmp.Compare(a.Name, b.Name) })
	return uplinks, nil
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

// carriers are the indexes of the interfaces that carry a default route or
// one of addresses.
func carriers(addresses []netip.Addr) (map[int]bool, error) {
	indexes := map[int]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := retryInterrupted(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
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
	held, err := retryInterrupted(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, address := range held {
		ip, ok := netip.AddrFromSlice(address.IP)
		if ok && slices.Contains(addresses, ip.Unmap()) {
			indexes[address.LinkIndex] = true
		}
	}
	return indexes, nil
}

// isDefault tells whether a route is a unicast default route.
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

// resubscribe is how long Watch waits before it subscribes again.
const resubscribe = time.Second

// Watch calls changed after something changed that Uplinks depends on, and
// once whenever a change may have been missed, until ctx is done.
func Watch(ctx context.Context, changed func()) error {
	for {
		if err := watchOnce(ctx, changed); err != nil {
			return err
		}
		changed()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(resubscribe):
		}
	}
}

// watchOnce returns nil when the kernel ended a subscription, as it does when
// messages were lost.
func watchOnce(ctx context.Context, changed func()) error {
	done := make(chan struct{})
	defer close(done)
	links := make(chan netlink.LinkUpdate)
	addresses := make(chan netlink.AddrUpdate)
	routes := make(chan netlink.RouteUpdate)
	// A failed subscription closes its channel; the error says no more.
	ignore := func(error) {}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: ignore}); err != nil {
		return fmt.Errorf("subscribe to changes of interfaces: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(addresses, done, netlink.AddrSubscribeOptions{ErrorCallback: ignore}); err != nil {
		return fmt.Errorf("subscribe to changes of addresses: %w", err)
	}
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{ErrorCallback: ignore}); err != nil {
		return fmt.Errorf("subscribe to changes of routes: %w", err)
	}
	// What changed before the subscriptions stood.
	changed()
	for {
		open := true
		select {
		case <-ctx.Done():
			drain(links)
			drain(addresses)
			drain(routes)
			return ctx.Err()
		case _, open = <-links:
		case _, open = <-addresses:
		case route, ok := <-routes:
			if open = ok; ok && !isDefault(route.Route) {
				continue
			}
		}
		if !open {
			drain(links)
			drain(addresses)
			drain(routes)
			return nil
		}
		changed()
	}
}

// drain lets a subscription's goroutine, which may be about to send, end.
func drain[T any](updates <-chan T) {
	go func() {
		for range updates {
		}
	}()
}
