// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// recipe is the input of a Service port's rows. Ports and families of a Service mostly have the same pods
// and weights, so that they share a recipe and, if possible, a table.
type recipe struct {
	// weights are empty if the table is held.
	weights map[forwarding.NodeID]uint32
	size    table.Size
	// zonal is true for a Service port with zones, which shares no table.
	zonal   bool
	spreads bool
	at      forwarding.FrontendKey
}

// line is a node table under construction: a recipe and the table it inherits owners from.
type line struct {
	recipe *recipe
	// from is the slot of the inherited table; zero for a new table. slot is the target slot, zero until
	// allocated. previous is the line's current slot if its size is outdated.
	from, slot, previous forwarding.NodeTableSlot
	// alone is true if the tables of zones are about to join it.
	alone bool
	// united is the merged table if it absorbed the former owners of other lines.
	united *forwarding.NodeTable
}

// branch records how a table was split off from another one.
type branch struct {
	from    forwarding.NodeTableSlot
	changes int
}

func (d *draft) service(name model.ServiceName) *service {
	s := d.services[name]
	if s == nil {
		s = &service{}
		d.services[name] = s
	}
	return s
}

// add adds a port and its recipe, unless there are no nodes for rows and no rows to hold.
func (s *service) add(p *port) {
	s.ports = append(s.ports, p)
	f := p.first
	if len(f.Weights) == 0 && !f.OnlyEstablished {
		return
	}
	zonal := hasZones(f)
	for _, r := range s.recipes {
		// Comparing map identity is cheap, and most of a Service's thousands of ports share one map.
		if !zonal && !r.zonal && len(f.Backends) == 0 && delta.IsSameMap(r.weights, f.Weights) {
			p.recipe = r
			return
		}
	}
	size := SizeFor(f)
	for _, r := range s.recipes {
		if !zonal && !r.zonal && r.size == size && maps.Equal(r.weights, f.Weights) {
			p.recipe = r
			return
		}
	}
	p.recipe = &recipe{weights: f.Weights, size: size, zonal: zonal}
	s.recipes = append(s.recipes, p.recipe)
}

// finish drops the state that the next plan does not need.
func (s *service) finish() {
	s.recipes, s.lines = nil, nil
	for _, p := range s.ports {
		p.first, p.recipe, p.line = nil, nil, nil
	}
}

// drawLines decides which ports of a Service share a node table and which slots are retained.
func (d *draft) drawLines() {
	for _, s := range d.services {
		for _, p := range s.ports {
			d.drawLine(s, p)
		}
		slices.SortStableFunc(s.lines, func(a, b *line) int { return cmp.Compare(d.rank(a), d.rank(b)) })
		s.joinNew()
	}
	d.unite()
}

// drawLine assigns a port the line of its recipe and current table. If several recipes share a table, the
// first retains the slot; the others split off with a copy.
func (d *draft) drawLine(s *service, p *port) {
	e := entry{p.first, p}
	own, previous := d.ownTable(p)
	if !e.needsTable() && !e.findsTable() && (!e.holdsTable() || d.have.NodeTables[own] == nil) {
		return
	}
	from := cmp.Or(own, previous)
	if d.have.NodeTables[from] == nil {
		from = 0
	}
	alone, kept := len(d.previousZones(p)) > 0, false
	for _, l := range s.lines {
		if l.recipe == p.recipe && l.from == from && !l.alone && !alone {
			p.line = l
			return
		}
		kept = kept || l.slot == own || l.previous == own
	}
	p.line = &line{recipe: p.recipe, from: from, alone: alone}
	if !kept {
		p.line.keep(own)
	}
	s.lines = append(s.lines, p.line)
}

// keep retains the current slot if its size is still right.
func (l *line) keep(own forwarding.NodeTableSlot) {
	if own != 0 && len(l.recipe.weights) > 0 && own.Rows() != l.recipe.size.Rows {
		l.previous = own
	} else {
		l.slot = own
	}
}

// rank orders lines so that a line comes after those it may join.
func (d *draft) rank(l *line) int {
	switch {
	case l.from == 0:
		return 3
	case l.slot == 0:
		return 2
	case d.planner.branches[l.slot].from != 0:
		return 1
	default:
		return 0
	}
}

// joinNew makes ports without a table, and thus without connections, share a table of their Service.
func (s *service) joinNew() {
	for i, l := range s.lines {
		if l.from != 0 || l.slot != 0 || l.alone {
			continue
		}
		for _, base := range s.lines[:i] {
			if base.recipe == l.recipe && !base.alone {
				s.replace(l, base)
				break
			}
		}
	}
}

func (s *service) replace(l, by *line) {
	for _, p := range s.ports {
		if p.line == l {
			p.line = by
		}
	}
	l.recipe = nil
}

// unite merges lines of one recipe if no connection is lost. Their owners are equal, since they follow from
// the weights; their former owners may differ.
func (d *draft) unite() {
	var services []*service
	steps, tables := map[*line]step{}, map[*line]*forwarding.NodeTable{}
	for _, s := range d.services {
		several := false
		for _, l := range s.lines {
			if !s.hasOther(l) || l.from == 0 {
				continue
			}
			if l.alone {
				// It can be merged once the tables of zones are gone.
				d.waits = true
				continue
			}
			several = true
			if have := d.have.NodeTables[l.from]; l.slot != 0 && d.planner.tables[l.slot].is(have, l.recipe.size, l.recipe.weights) {
				tables[l] = have
			} else {
				steps[l] = step{old: have, weighed: weighed{l.recipe.weights, l.recipe.size}}
			}
		}
		if several {
			services = append(services, s)
		}
	}
	maps.Copy(tables, advanceAll(d.planner, steps))
	for _, s := range services {
		d.uniteLines(s, tables)
	}
}

// hasOther reports whether another line has the same recipe and the tables follow from weights.
func (s *service) hasOther(l *line) bool {
	return l.recipe != nil && !l.recipe.zonal && len(l.recipe.weights) > 0 &&
		slices.ContainsFunc(s.lines, func(other *line) bool { return other != l && other.recipe == l.recipe })
}

func (d *draft) uniteLines(s *service, tables map[*line]*forwarding.NodeTable) {
	for i, l := range s.lines {
		for _, base := range s.lines[:i] {
			if l.recipe == nil || base.recipe != l.recipe || tables[base] == nil || tables[l] == nil {
				continue
			}
			united, fits := table.Merge(tables[base], tables[l])
			if !fits || !d.isBranch(l, base) && (table.IsFull(tables[base]) || table.IsFull(tables[l])) {
				continue
			}
			if united != tables[base] {
				base.united, tables[base] = united, united
			}
			s.replace(l, base)
			break
		}
	}
}

// isBranch reports whether a table was just split off from another one, so that its flow exceptions still
// name the other table's rows. Otherwise, a full history may have lost a former owner whose flows are found
// only by exceptions, and these do not move to other rows.
func (d *draft) isBranch(l, of *line) bool {
	known := d.planner.branches[l.slot]
	return l.slot != 0 && known.from == of.slot && known.changes <= 1
}

// placeTable returns the slot of an entry's node table. A lack of room is recorded as a problem.
func (d *draft) placeTable(entry entry) forwarding.NodeTableSlot {
	l := entry.port.line
	if l.slot == 0 {
		slot, found := d.tableSlots.take(l.recipe.size.Rows)
		switch {
		case found && l.previous != 0:
			d.histories[slot] = d.have.NodeTables[l.previous]
		case found && l.from != 0:
			d.histories[slot], d.origins[slot] = d.have.NodeTables[l.from], l.from
		case !found && l.previous != 0:
			// The table retains a size that differs from other nodes', so that the owners of a few flows
			// differ.
			slot, d.waits = l.previous, true
		case !found:
			return d.lacksTable(entry)
		}
		l.slot = slot
	}
	switch {
	case l.united != nil:
		d.united[l.slot] = table.Resize(l.united, l.slot.Rows())
		d.weights[l.slot] = weighed{l.recipe.weights, sizeAt(l.slot, l.recipe.size)}
	case len(l.recipe.weights) > 0:
		d.weights[l.slot] = weighed{l.recipe.weights, sizeAt(l.slot, l.recipe.size)}
	case !slices.Contains(d.held, l.slot):
		d.held = append(d.held, l.slot)
	}
	return l.slot
}

// lacksTable handles a missing slot. A Service port that cannot split off retains the shared table: some
// packets reach nodes without an endpoint, but most connections survive.
func (d *draft) lacksTable(entry entry) forwarding.NodeTableSlot {
	if entry.port.spreads {
		d.frontendFull(entry.Frontend, forwarding.NodeTables)
	} else {
		d.waits = true
	}
	own, _ := d.ownTable(entry.port)
	if own != 0 {
		d.borrowed = append(d.borrowed, own)
	}
	return own
}
