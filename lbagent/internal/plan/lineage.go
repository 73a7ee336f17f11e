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

// tableSpec is the input of a Service port's rows. Ports and families of a Service mostly have the same pods
// and weights, so that they share a table spec and, if possible, a table.
type tableSpec struct {
	// weights are empty if the table is held.
	weights map[forwarding.NodeID]uint32
	size    table.Size
	// zonal is true for a Service port with zones, which shares no table.
	zonal   bool
	spreads bool
	at      forwarding.FrontendKey
}

// lineage is a node table under construction: a table spec and the table it inherits owners from.
type lineage struct {
	spec *tableSpec
	// from is the slot of the inherited table; zero for a new table. slot is the target slot, zero until
	// allocated. previous is the lineage's current slot if its size is outdated.
	from, slot, previous forwarding.NodeTableSlot
	// alone is true if the tables of zones are about to join it.
	alone bool
	// merged is the merged table if it absorbed the former owners of other lineages.
	merged *forwarding.NodeTable
}

// fork records how a table was split off from another one.
type fork struct {
	from    forwarding.NodeTableSlot
	changes int
}

func (b *builder) service(name model.ServiceName) *service {
	s := b.services[name]
	if s == nil {
		s = &service{}
		b.services[name] = s
	}
	return s
}

// add adds a port and its table spec, unless there are no nodes for rows and no rows to hold.
func (s *service) add(p *port) {
	s.ports = append(s.ports, p)
	f := p.first
	if len(f.Weights) == 0 && !f.OnlyEstablished {
		return
	}
	zonal := hasZones(f)
	for _, r := range s.specs {
		// Comparing map identity is cheap, and most of a Service's thousands of ports share one map.
		if !zonal && !r.zonal && len(f.Backends) == 0 && delta.IsSameMap(r.weights, f.Weights) {
			p.spec = r
			return
		}
	}
	size := SizeFor(f)
	for _, r := range s.specs {
		if !zonal && !r.zonal && r.size == size && maps.Equal(r.weights, f.Weights) {
			p.spec = r
			return
		}
	}
	p.spec = &tableSpec{weights: f.Weights, size: size, zonal: zonal}
	s.specs = append(s.specs, p.spec)
}

// finish drops the state that the next plan does not need.
func (s *service) finish() {
	s.specs, s.lineages = nil, nil
	for _, p := range s.ports {
		p.first, p.spec, p.lineage = nil, nil, nil
	}
}

// assignLineages decides which ports of a Service share a node table and which slots are retained.
func (b *builder) assignLineages() {
	for _, s := range b.services {
		for _, p := range s.ports {
			b.assignLineage(s, p)
		}
		slices.SortStableFunc(s.lineages, func(x, y *lineage) int { return cmp.Compare(b.rank(x), b.rank(y)) })
		s.joinNew()
	}
	b.merge()
}

// assignLineage assigns a port the lineage of its table spec and current table. If several table specs
// share a table, the first retains the slot; the others split off with a copy.
func (b *builder) assignLineage(s *service, p *port) {
	e := entry{p.first, p}
	own, previous := b.ownTable(p)
	if !e.needsTable() && !e.findsTable() && (!e.holdsTable() || b.have.NodeTables[own] == nil) {
		return
	}
	from := cmp.Or(own, previous)
	if b.have.NodeTables[from] == nil {
		from = 0
	}
	alone, kept := len(b.previousZones(p)) > 0, false
	for _, l := range s.lineages {
		if l.spec == p.spec && l.from == from && !l.alone && !alone {
			p.lineage = l
			return
		}
		kept = kept || l.slot == own || l.previous == own
	}
	p.lineage = &lineage{spec: p.spec, from: from, alone: alone}
	if !kept {
		p.lineage.retain(own)
	}
	s.lineages = append(s.lineages, p.lineage)
}

// retain retains the current slot if its size is still right.
func (l *lineage) retain(own forwarding.NodeTableSlot) {
	if own != 0 && len(l.spec.weights) > 0 && own.Rows() != l.spec.size.Rows {
		l.previous = own
	} else {
		l.slot = own
	}
}

// rank orders lineages so that a lineage comes after those it may join.
func (b *builder) rank(l *lineage) int {
	switch {
	case l.from == 0:
		return 3
	case l.slot == 0:
		return 2
	case b.planner.forks[l.slot].from != 0:
		return 1
	default:
		return 0
	}
}

// joinNew makes ports without a table, and thus without connections, share a table of their Service.
func (s *service) joinNew() {
	for i, l := range s.lineages {
		if l.from != 0 || l.slot != 0 || l.alone {
			continue
		}
		for _, base := range s.lineages[:i] {
			if base.spec == l.spec && !base.alone {
				s.replace(l, base)
				break
			}
		}
	}
}

func (s *service) replace(l, by *lineage) {
	for _, p := range s.ports {
		if p.lineage == l {
			p.lineage = by
		}
	}
	l.spec = nil
}

// merge merges lineages of one table spec if no connection is lost. Their owners are equal, since they
// follow from the weights; their former owners may differ.
func (b *builder) merge() {
	var services []*service
	steps, tables := map[*lineage]step{}, map[*lineage]*forwarding.NodeTable{}
	for _, s := range b.services {
		several := false
		for _, l := range s.lineages {
			if !s.hasOther(l) || l.from == 0 {
				continue
			}
			if l.alone {
				// It can be merged once the tables of zones are gone.
				b.waits = true
				continue
			}
			several = true
			if have := b.have.NodeTables[l.from]; l.slot != 0 && b.planner.tables[l.slot].matches(have, l.spec.size, l.spec.weights) {
				tables[l] = have
			} else {
				steps[l] = step{old: have, weightInput: weightInput{l.spec.weights, l.spec.size}}
			}
		}
		if several {
			services = append(services, s)
		}
	}
	maps.Copy(tables, advanceAll(b.planner, steps))
	for _, s := range services {
		b.mergeLineages(s, tables)
	}
}

// hasOther reports whether another lineage has the same table spec and the tables follow from weights.
func (s *service) hasOther(l *lineage) bool {
	return l.spec != nil && !l.spec.zonal && len(l.spec.weights) > 0 &&
		slices.ContainsFunc(s.lineages, func(other *lineage) bool { return other != l && other.spec == l.spec })
}

func (b *builder) mergeLineages(s *service, tables map[*lineage]*forwarding.NodeTable) {
	for i, l := range s.lineages {
		for _, base := range s.lineages[:i] {
			if l.spec == nil || base.spec != l.spec || tables[base] == nil || tables[l] == nil {
				continue
			}
			united, fits := table.Merge(tables[base], tables[l])
			if !fits || !b.isFork(l, base) && (table.IsFull(tables[base]) || table.IsFull(tables[l])) {
				continue
			}
			if united != tables[base] {
				base.merged, tables[base] = united, united
			}
			s.replace(l, base)
			break
		}
	}
}

// isFork reports whether a table was just split off from another one, so that its overrides still
// name the other table's rows. Otherwise, a full history may have lost a former owner whose flows are found
// only by overrides, and these do not move to other rows.
func (b *builder) isFork(l, of *lineage) bool {
	known := b.planner.forks[l.slot]
	return l.slot != 0 && known.from == of.slot && known.changes <= 1
}

// placeTable returns the slot of an entry's node table. A lack of room is recorded as a problem.
func (b *builder) placeTable(entry entry) forwarding.NodeTableSlot {
	l := entry.port.lineage
	if l.slot == 0 {
		slot, found := b.tableSlots.allocate(l.spec.size.Rows)
		switch {
		case found && l.previous != 0:
			b.histories[slot] = b.have.NodeTables[l.previous]
		case found && l.from != 0:
			b.histories[slot], b.origins[slot] = b.have.NodeTables[l.from], l.from
		case !found && l.previous != 0:
			// The table retains a size that differs from other nodes', so that the owners of a few flows
			// differ.
			slot, b.waits = l.previous, true
		case !found:
			return b.lacksTable(entry)
		}
		l.slot = slot
	}
	switch {
	case l.merged != nil:
		b.merged[l.slot] = table.Resize(l.merged, l.slot.Rows())
		b.weights[l.slot] = weightInput{l.spec.weights, sizeAt(l.slot, l.spec.size)}
	case len(l.spec.weights) > 0:
		b.weights[l.slot] = weightInput{l.spec.weights, sizeAt(l.slot, l.spec.size)}
	case !slices.Contains(b.held, l.slot):
		b.held = append(b.held, l.slot)
	}
	return l.slot
}

// lacksTable handles a missing slot. A Service port that cannot split off retains the shared table: some
// packets reach nodes without an endpoint, but most connections survive.
func (b *builder) lacksTable(entry entry) forwarding.NodeTableSlot {
	if entry.port.spreads {
		b.frontendFull(entry.Frontend, forwarding.NodeTables)
	} else {
		b.waits = true
	}
	own, _ := b.ownTable(entry.port)
	if own != 0 {
		b.borrowed = append(b.borrowed, own)
	}
	return own
}
