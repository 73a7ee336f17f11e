// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
)

// ProbeAddresses probes addresses on links by ARP (RFC 826) or Neighbor Discovery (RFC 4861) and returns the
// hardware addresses that answered before ctx is done. The kernel sends the probes: neighbor entries are
// deleted before and afterwards. Missing links and permanent entries are skipped.
func ProbeAddresses(ctx context.Context, targets []fib.NeighbourKey) (map[fib.NeighbourKey][6]byte, error) {
	done := make(chan struct{})
	updates := make(chan netlink.NeighUpdate)
	if err := subscribeNeighbours(updates, done); err != nil {
		return nil, err
	}
	defer drain(updates)
	defer close(done)
	fixed, err := fixedNeighbours()
	if err != nil {
		return nil, err
	}
	targets = slices.DeleteFunc(slices.Clone(targets), func(key fib.NeighbourKey) bool { return fixed[key] })
	defer func() {
		for _, key := range targets {
			_ = removeNeighbour(key)
		}
	}()
	waiting := make(map[fib.NeighbourKey]bool, len(targets))
	for _, key := range targets {
		if waiting[key], err = probeNeighbour(key); err != nil {
			return nil, err
		}
	}
	return awaitNeighbours(ctx, updates, waiting)
}

func probeNeighbour(key fib.NeighbourKey) (bool, error) {
	// Otherwise the kernel would use a fresh entry without a probe.
	err := removeNeighbour(key)
	if err == nil {
		err = useNeighbour(key)
	}
	if err != nil && !isNotFound(err) {
		return false, fmt.Errorf("probe neighbour %s on interface %d: %w", key.Address, key.Interface, err)
	}
	return err == nil, nil
}

// awaitNeighbours returns the hardware addresses that the kernel learns for the waiting keys, until all
// are learned or ctx is done.
func awaitNeighbours(
	ctx context.Context, updates <-chan netlink.NeighUpdate, waiting map[fib.NeighbourKey]bool,
) (map[fib.NeighbourKey][6]byte, error) {
	maps.DeleteFunc(waiting, func(_ fib.NeighbourKey, waits bool) bool { return !waits })
	found := map[fib.NeighbourKey][6]byte{}
	for len(waiting) > 0 {
		select {
		case <-ctx.Done():
			return found, nil
		case update, open := <-updates:
			if !open {
				return nil, errLost
			}
			key, ok := neighbourKey(&update.Neigh)
			mac := neighbourOf(&update.Neigh).MAC
			if ok && waiting[key] && update.Type == unix.RTM_NEWNEIGH && mac != [6]byte{} {
				found[key] = mac
				delete(waiting, key)
			}
		}
	}
	return found, nil
}

// KnownNeighbours returns the hardware addresses in the kernel's neighbor tables for some addresses, by
// interface.
func KnownNeighbours(addresses []netip.Addr) (map[int][][6]byte, error) {
	known := map[int][][6]byte{}
	list, err := retryInterrupted(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the neighbours: %w", err)
	}
	for i := range list {
		key, ok := neighbourKey(&list[i])
		mac := neighbourOf(&list[i]).MAC
		if ok && mac != [6]byte{} && slices.Contains(addresses, key.Address) {
			known[key.Interface] = append(known[key.Interface], mac)
		}
	}
	return known, nil
}

func fixedNeighbours() (map[fib.NeighbourKey]bool, error) {
	list, err := retryInterrupted(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the neighbours: %w", err)
	}
	fixed := map[fib.NeighbourKey]bool{}
	for i := range list {
		if key, ok := neighbourKey(&list[i]); ok && list[i].State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 {
			fixed[key] = true
		}
	}
	return fixed, nil
}
