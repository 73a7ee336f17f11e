// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// nodeSet is a set of node ids. A table is asked about tens of thousands of times, so it is bits.
type nodeSet [(forwarding.MaxNodeID + 64) / 64]uint64

// living are the nodes that may be in rows and chains. Nobody asks a node that is down for a flow:
// a reset by another one is better than silence.
func living(nodes []model.Node) *nodeSet {
	set := &nodeSet{}
	for i := range nodes {
		if id := nodes[i].ID; !nodes[i].Down && id <= forwarding.MaxNodeID {
			set[id/64] |= 1 << (id % 64)
		}
	}
	return set
}

func (s *nodeSet) has(id forwarding.NodeID) bool {
	return id <= forwarding.MaxNodeID && s[id/64]>>(id%64)&1 != 0
}

// without returns the nodes of a set that are not in another one, and whether there are any.
func (s *nodeSet) without(other *nodeSet) (left nodeSet, some bool) {
	for i := range s {
		left[i] = s[i] &^ other[i]
		some = some || left[i] != 0
	}
	return left, some
}

// isIn reports whether a row of the table, or its chain, has a node of the set.
func (s *nodeSet) isIn(table *forwarding.NodeTable) bool {
	return slices.ContainsFunc(*table, func(row forwarding.Row) bool {
		return s.has(row.Primary) || slices.ContainsFunc(row.Chain[:], s.has)
	})
}

// leave has the tables computed again that name a node of the set. The others are as they would
// come out.
func (p *Planner) leave(lost *nodeSet) {
	named := map[*forwarding.NodeTable]bool{}
	for slot, settled := range p.tables {
		names, known := named[settled.table]
		if !known && settled.table != nil {
			names = lost.isIn(settled.table)
			named[settled.table] = names
		}
		if names {
			delete(p.tables, slot)
		}
	}
}
