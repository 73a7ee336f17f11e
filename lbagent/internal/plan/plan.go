// SPDX-License-Identifier: Apache-2.0

// Package plan computes the contents of the data plane's maps from the forwarding model. It allocates ids
// and slots, which are stable for the lifetime of their object, and enforces the capacities of the maps. It
// is pure.
package plan

import (
	"maps"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// Planner plans the contents of one node's maps. It caches computed tables and the last allocated ids; all
// other state is derived from the maps, so that a new Planner continues after a restart. It is not safe for
// concurrent use.
type Planner struct {
	rendezvous  *table.Rendezvous
	cache       tableCache
	endpointIDs sequence
	frontendIDs sequence
	// sourceSets are the sets of the last plan by list.
	sourceSetIDs sequence
	sourceSets   map[string]forwarding.SourceSet

	constants flowhash.Constants

	last     result
	scratch  scratch
	nodes    *nodeSet
	placed   map[servicePort]*port
	services map[model.ServiceName]*service
	forks    map[forwarding.NodeTableSlot]fork
	// tables and endpointTables are the tables of the last plan with their inputs.
	tables         map[forwarding.NodeTableSlot]committedTable
	endpointTables map[forwarding.EndpointTableSlot]committed[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]
}

type committed[K, V comparable, T interface {
	comparable
	Equal(T) bool
}] struct {
	from  map[K]V
	table T
}

func (s committed[K, V, T]) matches(table T, from map[K]V) bool {
	var none T
	return s.table != none && table != none && s.table.Equal(table) && maps.Equal(s.from, from)
}

// weighed is the input of a node table's rows, for a given set of existing nodes.
type weighed struct {
	weights map[forwarding.NodeID]uint32
	size    table.Size
}

type committedTable struct {
	committed[forwarding.NodeID, uint32, *forwarding.NodeTable]
	size table.Size
}

func (s committedTable) matches(table *forwarding.NodeTable, size table.Size, from map[forwarding.NodeID]uint32) bool {
	return s.size == size && s.committed.matches(table, from)
}

// sizeAt returns the size of a table in a slot. A slot that was retained for lack of room has its previous
// size.
func sizeAt(slot forwarding.NodeTableSlot, size table.Size) table.Size {
	return table.Size{Rows: slot.Rows(), Ranked: min(slot.Rows(), size.Ranked)}
}

// NewPlanner returns a Planner that continues from the content of the maps.
func NewPlanner(have *forwarding.State) *Planner {
	p := &Planner{
		constants:      flowhash.Public(),
		rendezvous:     table.NewRendezvous(),
		cache:          tableCache{},
		forks:          map[forwarding.NodeTableSlot]fork{},
		nodes:          &nodeSet{},
		tables:         map[forwarding.NodeTableSlot]committedTable{},
		endpointTables: map[forwarding.EndpointTableSlot]committed[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]{},
	}
	for id := range have.Endpoints {
		p.endpointIDs.last = max(p.endpointIDs.last, uint32(id))
	}
	for source := range have.SourceRanges {
		if !source.Set.OfFrontends() {
			continue
		}
		p.sourceSetIDs.last = max(p.sourceSetIDs.last, uint32(source.Set))
	}
	for _, frontend := range have.Frontends {
		p.frontendIDs.last = max(p.frontendIDs.last, uint32(frontend.ID))
	}
	return p
}

// SetHash sets the data plane's hash constants before the first plan and returns the Planner.
func (p *Planner) SetHash(constants flowhash.Constants) *Planner {
	p.constants = constants
	return p
}

// Plan returns the wanted content of the maps, given their current content. Ids and slots run from 1 to
// their limit. Those in have are not reallocated to other objects, so that no operation on the way to the
// plan exposes another frontend's entries. Removed ids and slots become free once have no longer contains
// them.
//
// Entries that do not fit are reported as a Problem with reason MapFull and the exhausted capacity.
// Programmed frontends come first and stay, with as many endpoints as fit. New frontends follow in turn by
// namespace, older VIPs first; a new frontend that does not fit completely is left out.
func (p *Planner) Plan(
	have *forwarding.State, m *model.Model, limits forwarding.Limits,
) (want *forwarding.State, problems []Problem) {
	d := newDraft(p, have, m, limits)
	d.setNodes()
	if nodes := liveNodes(m.Nodes); *nodes != *p.nodes {
		p.setNodes(nodes, p.lostIn(nodes))
	}
	d.assignLineages()
	d.setVIPs()
	d.setPools()
	d.setAggregates()
	entries := d.byPrecedence()
	for _, entry := range entries {
		d.addFrontend(entry)
	}
	d.addZones(entries)
	d.buildTables()
	d.evictTables()
	p.placed, p.services = d.ports, d.services
	for _, s := range d.services {
		s.finish()
	}
	p.sourceSets = map[string]forwarding.SourceSet{}
	for set, name := range d.sources.owners {
		p.sourceSets[name] = set
	}
	p.scratch = scratch{}
	p.last = result{
		model: m, want: d.want, limits: limits, unplaced: d.unplaced(nil, nil), zonal: d.isZonal(), budget: d.budget,
	}
	return d.want, p.last.problems
}

func (d *draft) setNodes() {
	d.want.Self = d.model.Self
	d.want.Nodes = make(map[forwarding.NodeID]forwarding.Node, len(d.model.Nodes))
	for _, node := range d.model.Nodes {
		// Packets from a node that is down are still accepted.
		if node.ID != d.model.Self.ID {
			d.want.Nodes[node.ID] = node.Node
		}
	}
}

func (d *draft) buildTables() {
	p := d.planner
	exists := p.nodes.has
	steps := map[forwarding.NodeTableSlot]step{}
	for slot, from := range d.weights {
		if len(d.joins[slot]) == 0 && d.merged[slot] == nil && !p.tables[slot].matches(d.have.NodeTables[slot], from.size, from.weights) {
			steps[slot] = step{old: d.predecessor(slot), weighed: from}
		}
	}
	advanced := advanceAll(p, steps)
	for slot, from := range d.weights {
		next := d.have.NodeTables[slot]
		if joins := d.joins[slot]; len(joins) > 0 {
			next = p.rendezvous.Advance(table.Join(d.predecessor(slot), joins...), from.size, from.weights, exists)
		} else if united := d.merged[slot]; united != nil {
			next = united
		} else if _, changes := steps[slot]; changes {
			next = advanced[slot]
		}
		d.want.NodeTables[slot] = next
		p.tables[slot] = committedTable{
			committed[forwarding.NodeID, uint32, *forwarding.NodeTable]{from: maps.Clone(from.weights), table: next}, from.size,
		}
	}
	for _, slot := range d.held {
		d.want.NodeTables[slot] = table.RetainOwners(table.Join(d.predecessor(slot), d.joins[slot]...), exists)
	}
	for _, slot := range d.borrowed {
		if d.want.NodeTables[slot] == nil {
			d.want.NodeTables[slot] = table.RetainOwners(d.have.NodeTables[slot], exists)
		}
	}
	d.recordForks()
	for slot, shares := range d.shares {
		have := d.have.EndpointTables[slot]
		next := have
		if !p.endpointTables[slot].matches(have, shares) {
			next = table.Shares(shares)
		}
		d.want.EndpointTables[slot] = next
		p.endpointTables[slot] = committed[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]{from: shares, table: next}
	}
}

func (d *draft) recordForks() {
	branches := d.planner.forks
	for slot, from := range d.origins {
		branches[slot] = fork{from: from}
	}
	for slot, known := range branches {
		have, want := d.have.NodeTables[slot], d.want.NodeTables[slot]
		if have != nil && want != nil && have != want {
			known.changes++
			branches[slot] = known
		}
	}
}

// predecessor returns the table that a slot inherits owners from, or nil.
func (d *draft) predecessor(slot forwarding.NodeTableSlot) *forwarding.NodeTable {
	if have := d.have.NodeTables[slot]; have != nil {
		return have
	}
	return d.histories[slot]
}

func (d *draft) evictTables() {
	p := d.planner
	maps.DeleteFunc(p.forks, func(slot forwarding.NodeTableSlot, _ fork) bool { return d.want.NodeTables[slot] == nil })
	maps.DeleteFunc(p.tables, func(slot forwarding.NodeTableSlot, _ committedTable) bool {
		return d.want.NodeTables[slot] == nil
	})
	maps.DeleteFunc(p.endpointTables,
		func(slot forwarding.EndpointTableSlot, _ committed[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]) bool {
			return d.want.EndpointTables[slot] == nil
		})
}
