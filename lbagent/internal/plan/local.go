// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// localReserve is which part of the node tables is kept for Service ports that cannot do without.
// So one that comes later has room at once, before a Local one has given up its table.
const localReserve = 8

// budgetLocal decides which Service ports under policy Local have a node table. They need none
// to serve new connections. But by it their TCP connections are found where a router moves them to
// another node. All nodes must decide alike, for a row's primary is told by one node and asked
// by others: so it depends on the model and the limit alone, in the order of the frontends. Service
// ports with one recipe count once, though they may have several tables for a while.
//
// previous are the Services in whose place those of the draft are; nil where the draft is of all.
func (d *draft) budgetLocal(previous map[model.ServiceName]*service) {
	local := d.countRows()
	rows := rowsIn(d.limits)
	if previous == nil {
		d.budget = newBudget(d.services, rows)
	} else {
		d.budget = d.planner.last.budget
		before := d.budget.end
		d.budget.replace(previous, d.services, rows)
		d.movesOthers = d.budget.moves(before, d.services)
	}
	for _, entry := range local {
		port := entry.port
		port.finds = port.recipe.spreads || d.budget.end.isBehind(port.recipe.at)
		if port.yields = !port.finds; port.yields {
			d.localFull(entry.Frontend)
		}
	}
}

// countRows counts the rows of each Service. It returns the first frontend of each Service port of
// policy Local that needs to find connections.
func (d *draft) countRows() (local []entry) {
	counted := map[*port]bool{}
	for _, entry := range d.entries {
		recipe := entry.port.recipe
		if recipe == nil || !entry.Spreads() || counted[entry.port] {
			continue
		}
		counted[entry.port] = true
		if !recipe.spreads {
			recipe.spreads = true
			entry.port.service.spreads += max(1, zonesOf(entry.Frontend)) * recipe.size.Rows
		}
	}
	for _, entry := range d.entries {
		recipe := entry.port.recipe
		if recipe == nil || entry.Key.Protocol != forwarding.ProtocolTCP || counted[entry.port] {
			continue
		}
		counted[entry.port] = true
		local = append(local, entry)
		if !recipe.spreads && recipe.at == (forwarding.FrontendKey{}) {
			recipe.at = entry.Key
			entry.port.service.addLocal(recipe)
		}
	}
	return local
}

func (s *service) addLocal(r *recipe) { s.locals = append(s.locals, local{r.at, r.size.Rows}) }

// forLocal is how many of the rows Local Service ports may have together with the others.
func forLocal(rows int) int { return rows - rows/localReserve }

// findsTable reports whether a frontend has a node table where there is room for one.
func (e entry) findsTable() bool { return e.port.finds && len(e.Weights) > 0 }

// zonesOf is how many zones a frontend has weights for.
func zonesOf(frontend *model.Frontend) (zones int) {
	for _, weights := range frontend.Zones {
		if weights != nil {
			zones++
		}
	}
	return zones
}
