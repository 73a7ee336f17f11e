// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"net/netip"
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

// search tells which tables name a node of a set. It looks into each once.
type search struct {
	nodes nodeSet
	named map[*forwarding.NodeTable]bool
}

func (s *search) finds(table *forwarding.NodeTable) bool {
	named, known := s.named[table]
	if !known && table != nil {
		named = s.nodes.isIn(table)
		s.named[table] = named
	}
	return named
}

// lostIn returns the search for the nodes that lived in the last plan and do not any more; nil where
// there are none.
func (p *Planner) lostIn(living *nodeSet) *search {
	lost, some := p.nodes.without(living)
	if !some {
		return nil
	}
	return &search{lost, map[*forwarding.NodeTable]bool{}}
}

// losing are the VIPs with tables that the search finds.
func (p *Planner) losing(lost *search) (vips []netip.Addr) {
	for _, port := range p.placed {
		if slices.ContainsFunc(port.place.nodeTables(), func(slot forwarding.NodeTableSlot) bool { return lost.finds(p.last.want.NodeTables[slot]) }) {
			for _, key := range port.keys {
				vips = append(vips, key.VIP)
			}
		}
	}
	return vips
}

// setNodes has tables be computed for these nodes. Those that name a lost one are computed again. The
// others are as they would come out.
func (p *Planner) setNodes(nodes *nodeSet, lost *search) {
	if lost != nil {
		maps.DeleteFunc(p.tables, func(_ forwarding.NodeTableSlot, settled settledTable) bool { return lost.finds(settled.table) })
		p.rendezvous.Forget(nodes.has)
	}
	clear(p.advances)
	p.nodes = nodes
}
