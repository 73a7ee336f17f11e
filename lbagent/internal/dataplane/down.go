// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// SetDown marks nodes as down, in addition to those that operations mark. Their packets go to the next node
// of each row at once, because writing the rows of all tables may take most of a second. It returns the
// errors of nodes that cannot be written, which the next call retries.
func (d *Dataplane) SetDown(down map[forwarding.NodeID]bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	previous := d.down
	d.down = maps.Clone(down)
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) {
		if previous[id] == down[id] {
			continue
		}
		if err := d.writeNode(id, d.nodes[id]); err != nil {
			if d.down == nil {
				d.down = map[forwarding.NodeID]bool{}
			}
			d.down[id] = previous[id]
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// marked returns the node's entry, without a prepared hop if it is down.
func (d *Dataplane) marked(id forwarding.NodeID, node bpf.DatapathNode) bpf.DatapathNode {
	if node == (bpf.DatapathNode{}) {
		return node
	}
	if d.down[id] {
		node.Flags |= uint32(bpf.DatapathNodeFlagNODE_DOWN)
	}
	if node.Flags&uint32(bpf.DatapathNodeFlagNODE_DOWN) != 0 {
		return node
	}
	return withHop(node, d.hops[id])
}
