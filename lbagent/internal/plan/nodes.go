// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// nodeSet is a bit set of node ids, because each table is checked tens of thousands of times.
type nodeSet [(forwarding.MaxNodeID + 64) / 64]uint64

// liveNodes returns the nodes that may be in rows and chains. Down nodes are excluded, because they would not
// answer a query for a flow: a reset by another node is better than a timeout.
func liveNodes(nodes []model.Node) *nodeSet {
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

func (s *nodeSet) without(other *nodeSet) (left nodeSet, some bool) {
	for i := range s {
		left[i] = s[i] &^ other[i]
		some = some || left[i] != 0
	}
	return left, some
}

func (s *nodeSet) isIn(table *forwarding.NodeTable) bool {
	return slices.ContainsFunc(*table, func(row forwarding.Row) bool {
		return s.has(row.Primary) || slices.ContainsFunc(row.Chain[:], s.has)
	})
}

// search caches which tables contain a node of a set.
type search struct {
	nodes nodeSet
	named map[*forwarding.NodeTable]bool
}

func (s *search) contains(table *forwarding.NodeTable) bool {
	named, known := s.named[table]
	if !known && table != nil {
		named = s.nodes.isIn(table)
		s.named[table] = named
	}
	return named
}

// lostIn returns the search for nodes that were live in the last plan and no longer are; nil if there are
// none.
func (p *Planner) lostIn(living *nodeSet) *search {
	lost, some := p.nodes.without(living)
	if !some {
		return nil
	}
	return &search{lost, map[*forwarding.NodeTable]bool{}}
}

func (p *Planner) losing(lost *search) (vips []netip.Addr) {
	for _, port := range p.placed {
		if slices.ContainsFunc(port.place.nodeTables(), func(slot forwarding.NodeTableSlot) bool { return lost.contains(p.last.want.NodeTables[slot]) }) {
			for _, key := range port.keys {
				vips = append(vips, key.VIP)
			}
		}
	}
	return vips
}

// setNodes sets the live nodes and drops the cached tables that contain a lost node. All other tables are
// still valid.
func (p *Planner) setNodes(nodes *nodeSet, lost *search) {
	if lost != nil {
		maps.DeleteFunc(p.tables, func(_ forwarding.NodeTableSlot, settled committedTable) bool { return lost.contains(settled.table) })
		p.rendezvous.Evict(nodes.has)
	}
	clear(p.cache)
	p.nodes = nodes
}
