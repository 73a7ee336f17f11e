// SPDX-License-Identifier: Apache-2.0

// Package plan turns the forwarding model into the contents of the data
// plane's maps: it gives out ids and slots, which stay as they are for as long
// as what they name lives, and keeps within the capacities of the maps. It is
// pure.
package plan

import (
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// Planner plans the contents of one node's maps. It remembers which ids were
// given out last and what it has computed already; everything else it finds
// in the maps' content, so that a new Planner goes on where another ended. It
// is not safe for concurrent use.
type Planner struct {
	rendezvous  *table.Rendezvous
	endpointIDs sequence
	frontendIDs sequence
	// sourceSetIDs give out sets; sourceSets are those of the last plan, by the
	// list that they were given to.
	sourceSetIDs sequence
	sourceSets   map[string]program.SourceSet

	// nodes are those of the last plan.
	nodes map[program.NodeID]struct{}
	// placed are the backends of the last plan.
	placed map[backend]placement
	// tables and endpointTables are what was planned last, with what from.
	tables         map[program.TableSlot]settled[program.NodeID, uint32, program.Table]
	endpointTables map[program.EndpointSlot]settled[program.Endpoint, program.EndpointID, program.EndpointTable]
}

// settled is a table with what it was computed from.
type settled[K, V comparable, T program.Table | program.EndpointTable] struct {
	from  map[K]V
	table *T
}

// is tells whether the table has the given content and origin.
func (s settled[K, V, T]) is(table *T, from map[K]V) bool {
	return s.table != nil && table != nil && (s.table == table || *s.table == *table) && maps.Equal(s.from, from)
}

// NewPlanner returns a Planner that goes on from what the maps hold.
func NewPlanner(have *program.State) *Planner {
	p := &Planner{
		rendezvous:     table.NewRendezvous(),
		nodes:          map[program.NodeID]struct{}{},
		tables:         map[program.TableSlot]settled[program.NodeID, uint32, program.Table]{},
		endpointTables: map[program.EndpointSlot]settled[program.Endpoint, program.EndpointID, program.EndpointTable]{},
	}
	for id := range have.Endpoints {
		p.endpointIDs.last = max(p.endpointIDs.last, uint32(id))
	}
	for source := range have.SourceRanges {
		if source.Set == program.Pools {
			continue
		}
		p.sourceSetIDs.last = max(p.sourceSetIDs.last, uint32(source.Set))
	}
	for _, frontend := range have.Frontends {
		p.frontendIDs.last = max(p.frontendIDs.last, uint32(frontend.ID))
	}
	return p
}

// Plan returns what the maps should hold, given what they hold now. Ids and
// slots run from 1 to their limit. Nothing that have names is given out for
// something else, so that the operations from have to the plan never show a
// frontend what is another's; what is removed can be given out again once have
// is without it.
//
// What does not fit comes back as a Problem of reason MapFull that names the
// flag to raise. Frontends that are programmed already come first and stay,
// with as many endpoints as fit; of the others, in their order, those that do
// not fit as a whole are left out.
func (p *Planner) Plan(
	have *program.State, m *model.Model, limits program.Limits,
) (want *program.State, problems []model.Problem) {
	d := newDraft(p, have, m, limits)
	d.setNodes()
	d.setVIPs()
	d.setPools()
	for _, frontend := range d.byPrecedence() {
		d.addFrontend(frontend)
	}
	d.addZones()
	d.buildTables()
	p.placed = d.backends
	p.sourceSets = map[string]program.SourceSet{}
	for set, name := range d.sources.owners {
		p.sourceSets[name] = set
	}
	return d.want, d.problems
}

func (d *draft) setNodes() {
	d.want.Self = d.model.Self
	nodes := map[program.NodeID]struct{}{}
	for _, node := range d.model.Nodes {
		nodes[node.ID] = struct{}{}
		if node.ID != d.model.Self.ID {
			d.want.Nodes[node.ID] = program.Node{IPv4: node.IPv4, IPv6: node.IPv6}
		}
	}
	for former := range d.planner.nodes {
		if _, found := nodes[former]; !found {
			// It has to leave the chains of all tables.
			clear(d.planner.tables)
			d.planner.rendezvous.Forget(func(id program.NodeID) bool { _, found := nodes[id]; return found })
			break
		}
	}
	d.planner.nodes = nodes
}

// byPrecedence returns the model's frontends: those that are programmed, then
// the others, each in the order of their keys.
func (d *draft) byPrecedence() []*model.Frontend {
	var programmed, others []*model.Frontend
	for i := range d.model.Frontends {
		frontend := &d.model.Frontends[i]
		if _, found := d.have.Frontends[frontend.Key]; found {
			programmed = append(programmed, frontend)
		} else {
			others = append(others, frontend)
		}
	}
	return slices.Concat(programmed, others)
}

// buildTables computes the tables of the slots that were given out.
func (d *draft) buildTables() {
	p := d.planner
	exists := func(id program.NodeID) bool { _, found := p.nodes[id]; return found }
	for slot, weights := range d.weights {
		have := d.have.Tables[slot]
		next := have
		if have == nil {
			have = d.histories[slot]
		}
		if joins := d.joins[slot]; len(joins) > 0 {
			next = p.rendezvous.Advance(table.Join(have, joins...), weights, exists)
		} else if !p.tables[slot].is(next, weights) {
			next = p.rendezvous.Advance(have, weights, exists)
		}
		d.want.Tables[slot] = next
		p.tables[slot] = settled[program.NodeID, uint32, program.Table]{from: maps.Clone(weights), table: next}
	}
	for _, slot := range d.held {
		d.want.Tables[slot] = table.Hold(table.Join(d.have.Tables[slot], d.joins[slot]...), exists)
	}
	for slot, ids := range d.ids {
		have := d.have.EndpointTables[slot]
		next := have
		if !p.endpointTables[slot].is(have, ids) {
			next = table.Endpoints(ids)
		}
		d.want.EndpointTables[slot] = next
		p.endpointTables[slot] = settled[program.Endpoint, program.EndpointID, program.EndpointTable]{from: ids, table: next}
	}
	maps.DeleteFunc(p.tables, func(slot program.TableSlot, _ settled[program.NodeID, uint32, program.Table]) bool {
		return d.want.Tables[slot] == nil
	})
	maps.DeleteFunc(p.endpointTables,
		func(slot program.EndpointSlot, _ settled[program.Endpoint, program.EndpointID, program.EndpointTable]) bool {
			return d.want.EndpointTables[slot] == nil
		})
}
