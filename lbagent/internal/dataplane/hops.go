// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// SetHops replaces the prepared next hops of nodes. For other nodes, the program looks up the next hop of
// each packet in the kernel's FIB. It sets all valid hops and returns an error for the others.
//
// A node whose address changes loses its hop until the next call. Hops are valid only while RenewLease is
// called.
func (d *Dataplane) SetHops(hops map[forwarding.NodeID]forwarding.Hop) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	next := map[forwarding.NodeID]forwarding.Hop{}
	for _, id := range slices.Sorted(maps.Keys(hops)) {
		if err := checkHop(hops[id]); err != nil {
			errs = append(errs, fmt.Errorf("prepared next hop of node %d: %w", id, err))
			continue
		}
		next[id] = hops[id]
	}
	previous := d.hops
	d.hops = next
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) {
		if previous[id] == next[id] {
			continue
		}
		if err := d.writeNode(id, d.nodes[id]); err != nil {
			// The next call retries.
			d.hops[id] = previous[id]
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func checkHop(hop forwarding.Hop) error {
	switch {
	case hop.Interface < 1 || int64(hop.Interface) > math.MaxInt32:
		return fmt.Errorf("%d is not an interface index", hop.Interface)
	case hop.MTU < 1 || hop.MTU > math.MaxUint16:
		return fmt.Errorf("the MTU is %d, must be within 1 and %d", hop.MTU, math.MaxUint16)
	default:
		return nil
	}
}

func (d *Dataplane) writeNode(id forwarding.NodeID, node bpf.DatapathNode) error {
	return write(d.maps.Nodes, bpf.DatapathMapNodes, id, uint32(id), d.marked(id, node))
}

// RenewLease confirms the prepared next hops for 30 s, after which the program uses the kernel's FIB instead.
func (d *Dataplane) RenewLease() error {
	if _, err := d.programs.RenewLease.Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("renew the lease of the prepared next hops: %w", err)
	}
	return nil
}
