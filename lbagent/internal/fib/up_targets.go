// SPDX-License-Identifier: Apache-2.0

package fib

import (
	"maps"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// UpTargets caches the targets of the nodes that are up, because computing them for a thousand nodes is
// slower than comparing the input. The zero value is ready to use.
type UpTargets struct {
	self  forwarding.Self
	nodes map[forwarding.NodeID]forwarding.Node
	found map[forwarding.NodeID]Target
}

// Of returns the targets of the nodes that are up; the fast path must not send to others. It returns the
// previous map if nothing changed. The result and nodes must not be modified.
func (t *UpTargets) Of(self forwarding.Self, nodes map[forwarding.NodeID]forwarding.Node) map[forwarding.NodeID]Target {
	if t.found != nil && t.self == self && (delta.IsSameMap(t.nodes, nodes) || maps.Equal(t.nodes, nodes)) {
		t.nodes = nodes
		return t.found
	}
	t.self, t.nodes = self, nodes
	up := maps.Clone(nodes)
	maps.DeleteFunc(up, func(_ forwarding.NodeID, node forwarding.Node) bool { return node.Down })
	t.found = Targets(self, up)
	return t.found
}
