// SPDX-License-Identifier: Apache-2.0

// Package plan turns the forwarding model into the contents of the data
// plane's maps. It gives out ids and slots, which stay the same while what they
// name exists, and keeps within the capacities of the maps. It is pure.
package plan

import (
	"maps"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// Planner plans the contents of one node's maps. It remembers which ids were
// given out last and what it has computed already. Everything else it finds
// in the maps' content, so a new Planner goes on where another ended. It is not
// safe for concurrent use.
type Planner struct {
	rendezvous  *table.Rendezvous
	advances    advances
	endpointIDs sequence
	frontendIDs sequence
	// sourceSetIDs give out sets; sourceSets are those of the last plan, by the
	// list that they were given to.
	sourceSetIDs sequence
	sourceSets   map[string]forwarding.SourceSet

	// constants are those of the data plane's hash.
	constants flowhash.Constants

	// last is what the last plan came to, spare the plan before it.
	last  outcome
	spare spare
	// nodes are the living ones of the last plan.
	nodes *nodeSet
	// placed are the Service ports of the last plan, services its Services.
	placed   map[servicePort]*port
	services map[model.ServiceName]*service
	// branches are tables that were split off from others.
	branches map[forwarding.NodeTableSlot]branch
	// tables and endpointTables are what was planned last, with what from.
	tables         map[forwarding.NodeTableSlot]settledTable
	endpointTables map[forwarding.EndpointTableSlot]settled[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]
}

// settled is a table with what it was computed from.
type settled[K, V comparable, T interface {
	comparable
	Equal(T) bool
}] struct {
	from  map[K]V
	table T
}

// is reports whether the table has the given content and origin.
func (s settled[K, V, T]) is(table T, from map[K]V) bool {
	var none T
	return s.table != none && table != none && s.table.Equal(table) && maps.Equal(s.from, from)
}

// weighed is what the rows of a node table follow from, beside the nodes that exist.
type weighed struct {
	weights map[forwarding.NodeID]uint32
	size    table.Size
}

// settledTable is a node table with what it was computed from.
type settledTable struct {
	settled[forwarding.NodeID, uint32, *forwarding.NodeTable]
	size table.Size
}

// is reports whether the table has the given content and origin.
func (s settledTable) is(table *forwarding.NodeTable, size table.Size, from map[forwarding.NodeID]uint32) bool {
	return s.size == size && s.settled.is(table, from)
}

// sizeAt is the size that a table has in a slot. Where there was no room for that which it should
// have, the slot is a previous one.
func sizeAt(slot forwarding.NodeTableSlot, size table.Size) table.Size {
	return table.Size{Rows: slot.Rows(), Ranked: min(slot.Rows(), size.Ranked)}
}

// NewPlanner returns a Planner that goes on from what the maps hold.
func NewPlanner(have *forwarding.State) *Planner {
	p := &Planner{
		constants:      flowhash.Public(),
		rendezvous:     table.NewRendezvous(),
		advances:       advances{},
		branches:       map[forwarding.NodeTableSlot]branch{},
		nodes:          &nodeSet{},
		tables:         map[forwarding.NodeTableSlot]settledTable{},
		endpointTables: map[forwarding.EndpointTableSlot]settled[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]{},
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

// HashBy has the Planner find IPv6 frontends as a data plane with these constants does. It comes
// before the first plan, and returns the Planner.
func (p *Planner) HashBy(constants flowhash.Constants) *Planner {
	p.constants = constants
	return p
}

// Plan returns what the maps should hold, given what they hold now. Ids and
// slots run from 1 to their limit. Those in have are not given to anything
// else, so that the operations from have to the plan never show a frontend what
// is another's. What is removed can be given out again once have is without it.
//
// What does not fit comes back as a Problem of reason MapFull that names the
// capacity. Frontends that are programmed already come first and stay, with as
// many endpoints as fit. The others follow, those of all namespaces in turn and
// of older VIPs first; those that do not fit as a whole are left out.
func (p *Planner) Plan(
	have *forwarding.State, m *model.Model, limits forwarding.Limits,
) (want *forwarding.State, problems []Problem) {
	d := newDraft(p, have, m, limits)
	d.setNodes()
	if nodes := living(m.Nodes); *nodes != *p.nodes {
		p.setNodes(nodes, p.lostIn(nodes))
	}
	d.drawLines()
	d.setVIPs()
	d.setPools()
	d.setAggregates()
	entries := d.byPrecedence()
	for _, entry := range entries {
		d.addFrontend(entry)
	}
	d.addZones(entries)
	d.buildTables()
	d.forgetTables()
	p.placed, p.services = d.ports, d.services
	for _, s := range d.services {
		s.finish()
	}
	p.sourceSets = map[string]forwarding.SourceSet{}
	for set, name := range d.sources.owners {
		p.sourceSets[name] = set
	}
	p.spare = spare{}
	p.last = outcome{
		model: m, want: d.want, limits: limits, leftover: d.leftOver(nil, nil), zonal: d.isZonal(), budget: d.budget,
	}
	return d.want, p.last.problems
}

func (d *draft) setNodes() {
	d.want.Self = d.model.Self
	d.want.Nodes = make(map[forwarding.NodeID]forwarding.Node, len(d.model.Nodes))
	for _, node := range d.model.Nodes {
		// One that is down stays a node whose packets are taken.
		if node.ID != d.model.Self.ID {
			d.want.Nodes[node.ID] = node.Node
		}
	}
}

// buildTables computes the tables of the slots that were given out.
func (d *draft) buildTables() {
	p := d.planner
	exists := p.nodes.has
	steps := map[forwarding.NodeTableSlot]step{}
	for slot, from := range d.weights {
		if len(d.joins[slot]) == 0 && d.united[slot] == nil && !p.tables[slot].is(d.have.NodeTables[slot], from.size, from.weights) {
			steps[slot] = step{old: d.before(slot), weighed: from}
		}
	}
	advanced := advanceAll(p, steps)
	for slot, from := range d.weights {
		next := d.have.NodeTables[slot]
		if joins := d.joins[slot]; len(joins) > 0 {
			next = p.rendezvous.Advance(table.Join(d.before(slot), joins...), from.size, from.weights, exists)
		} else if united := d.united[slot]; united != nil {
			next = united
		} else if _, changes := steps[slot]; changes {
			next = advanced[slot]
		}
		d.want.NodeTables[slot] = next
		p.tables[slot] = settledTable{
			settled[forwarding.NodeID, uint32, *forwarding.NodeTable]{from: maps.Clone(from.weights), table: next}, from.size,
		}
	}
	for _, slot := range d.held {
		d.want.NodeTables[slot] = table.Hold(table.Join(d.before(slot), d.joins[slot]...), exists)
	}
	for _, slot := range d.borrowed {
		if d.want.NodeTables[slot] == nil {
			d.want.NodeTables[slot] = table.Hold(d.have.NodeTables[slot], exists)
		}
	}
	d.noteBranches()
	for slot, shares := range d.shares {
		have := d.have.EndpointTables[slot]
		next := have
		if !p.endpointTables[slot].is(have, shares) {
			next = table.Shares(shares)
		}
		d.want.EndpointTables[slot] = next
		p.endpointTables[slot] = settled[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]{from: shares, table: next}
	}
}

// noteBranches notes which tables were split off, and which of those have changed.
func (d *draft) noteBranches() {
	branches := d.planner.branches
	for slot, from := range d.origins {
		branches[slot] = branch{from: from}
	}
	for slot, known := range branches {
		have, want := d.have.NodeTables[slot], d.want.NodeTables[slot]
		if have != nil && want != nil && have != want {
			known.changes++
			branches[slot] = known
		}
	}
}

// before is what the table of a slot goes on from; nil where that is nothing.
func (d *draft) before(slot forwarding.NodeTableSlot) *forwarding.NodeTable {
	if have := d.have.NodeTables[slot]; have != nil {
		return have
	}
	return d.histories[slot]
}

// forgetTables forgets what the tables were computed from that are not there any more.
func (d *draft) forgetTables() {
	p := d.planner
	maps.DeleteFunc(p.branches, func(slot forwarding.NodeTableSlot, _ branch) bool { return d.want.NodeTables[slot] == nil })
	maps.DeleteFunc(p.tables, func(slot forwarding.NodeTableSlot, _ settledTable) bool {
		return d.want.NodeTables[slot] == nil
	})
	maps.DeleteFunc(p.endpointTables,
		func(slot forwarding.EndpointTableSlot, _ settled[forwarding.Endpoint, table.Share, *forwarding.EndpointTable]) bool {
			return d.want.EndpointTables[slot] == nil
		})
}
