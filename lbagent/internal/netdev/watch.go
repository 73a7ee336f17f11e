// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

const resubscribe = time.Second

// Watch calls changed after each change that may affect the uplinks, and whenever a change may have been
// missed, until ctx is done.
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

// watchOnce returns nil when the kernel ended a subscription because events were lost.
func watchOnce(ctx context.Context, changed func()) error {
	done := make(chan struct{})
	defer close(done)
	links := make(chan netlink.LinkUpdate)
	addresses := make(chan netlink.AddrUpdate)
	routes := make(chan netlink.RouteUpdate)
	// A failed subscription closes its channel; the error has no further information.
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
	// Changes before the subscription.
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

// drain lets a subscription's goroutine end, which may be blocked in a send.
func drain[T any](updates <-chan T) {
	go func() {
		for range updates {
		}
	}()
}
