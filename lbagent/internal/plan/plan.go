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
	// sourceSets maps each list of source ranges to its set in the last plan.
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

// weightInput is the input of a node table's rows, for a given set of existing nodes.
type weightInput struct {
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
	b := newBuilder(p, have, m, limits)
	b.setNodes()
	if nodes := liveNodes(m.Nodes); *nodes != *p.nodes {
		p.setNodes(nodes, p.lostIn(nodes))
	}
	b.assignLineages()
	b.setVIPs()
	b.setPools()
	b.setAggregates()
	entries := b.byPrecedence()
	for _, entry := range entries {
		b.addFrontend(entry)
	}
	b.addZones(entries)
	b.buildTables()
	b.evictTables()
	p.placed, p.services = b.ports, b.services
	for _, s := range b.services {
		s.finish()
	}
	p.sourceSets = map[string]forwarding.SourceSet{}
	for set, name := range b.sources.owners {
		p.sourceSets[name] = set
	}
	p.scratch = scratch{}
	p.last = result{
		model: m, want: b.want, limits: limits, unplaced: b.unplaced(nil, nil), zonal: b.isZonal(), budget: b.budget,
	}
	return b.want, p.last.problems
}

func (b *builder) setNodes() {
	b.want.Self = b.model.Self
	b.want.Nodes = make(map[forwarding.NodeID]forwarding.Node, len(b.model.Nodes))
	for _, node := range b.model.Nodes {
		// Packets from a node that is down are still accepted.
		if node.ID != b.model.Self.ID {
			b.want.Nodes[node.ID] = node.Node
		}
	}
}

func (b *builder) buildTables() {
	p := b.planner
	exists := p.nodes.has
	steps := map[forwarding.NodeTableSlot]step{}
	for slot, from := range b.weights {
		if len(b.joins[slot]) == 0 && b.merged[slot] == nil && !p.tables[slot].matches(b.have.NodeTables[slot], from.size, from.weights) {
			steps[slot] = step{old: b.predecessor(slot), weightInput: from}
		}
	}
	advanced := advanceAll(p, steps)
	for slot, from := range b.weights {
		next := b.have.NodeTables[slot]
		if joins := b.joins[slot]; len(joins) > 0 {
			next = p.rendezvous.Advance(table.Join(b.predecessor(slot), joins...), from.size, from.weights, exists)
		} else if united := b.merged[slot]; united != nil {
			next = united
		} else if _, changes := steps[slot]; changes {
			next = advanced[slot]
		}
		b.want.NodeTables[slot] = next
		p.tables[slot] = committedTable{
			committed[forwarding.NodeID, uint32, *forwarding.NodeTable]{from: maps.Clone(from.weights), table: next}, from.size,
		}
	}
	for _, slot := range b.held {
		b.want.NodeTables[slot] = table.RetainOwners(table.Join(b.predecessor(slot), b.joins[slot]...), exists)
	}
	for _, slot := range b.borrowed {
		if b.want.NodeTables[slot] == nil {
			b.want.NodeTables[slot] = table.RetainOwners(b.have.NodeTables[slot], exists)
		}
	}
	b.recordForks()
	for slot, shares := range b.shares {
		have := b.have.EndpointTables[slot]
		next := have
		if !p.endpointTables[slot].matches(have, shares) {
			next = table.Shares(shares)
		}
		b.want.EndpointTables[slot] = next
		p.endpointTables[slot] = committed[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]{from: shares, table: next}
	}
}

func (b *builder) recordForks() {
	branches := b.planner.forks
	for slot, from := range b.origins {
		branches[slot] = fork{from: from}
	}
	for slot, known := range branches {
		have, want := b.have.NodeTables[slot], b.want.NodeTables[slot]
		if have != nil && want != nil && have != want {
			known.changes++
			branches[slot] = known
		}
	}
}

// predecessor returns the table that a slot inherits owners from, or nil.
func (b *builder) predecessor(slot forwarding.NodeTableSlot) *forwarding.NodeTable {
	if have := b.have.NodeTables[slot]; have != nil {
		return have
	}
	return b.histories[slot]
}

func (b *builder) evictTables() {
	p := b.planner
	maps.DeleteFunc(p.forks, func(slot forwarding.NodeTableSlot, _ fork) bool { return b.want.NodeTables[slot] == nil })
	maps.DeleteFunc(p.tables, func(slot forwarding.NodeTableSlot, _ committedTable) bool {
		return b.want.NodeTables[slot] == nil
	})
	maps.DeleteFunc(p.endpointTables,
		func(slot forwarding.EndpointTableSlot, _ committed[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]) bool {
			return b.want.EndpointTables[slot] == nil
		})
}
