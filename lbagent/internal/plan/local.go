// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// localReserve is the fraction (1/8) of node table rows that Local Service ports cannot use. A forwarding
// Service port can then get its table before a Local port has released one.
const localReserve = 8

// budgetLocal decides which Service ports of policy Local have a node table. They do not need it for new
// connections, but TCP connections that a router moves to another node are found by it. The decision
// depends only on the model, the limit and the frontend order, because all nodes must agree on it: one node
// announces a flow to the row's primary, and others query that primary. Ports with the same spec count
// once, even while they have several tables.
//
// previous are the Services that the builder replaces; nil in a full plan.
func (b *builder) budgetLocal(previous map[model.ServiceName]*service) {
	local := b.countRows()
	rows := rowsIn(b.limits)
	if previous == nil {
		b.budget = newBudget(b.services, rows)
	} else {
		b.budget = b.planner.last.budget
		before := b.budget.end
		b.budget.replace(previous, b.services, rows)
		b.changesOthers = b.budget.changesOthers(before, b.services)
	}
	for _, entry := range local {
		port := entry.port
		port.hasLocalTable = port.spec.spreads || b.budget.end.isAfter(port.spec.at)
		if port.yields = !port.hasLocalTable; port.yields {
			b.localFull(entry.Frontend)
		}
	}
}

// countRows counts the rows of each Service and returns the first frontend of each TCP Service port of
// policy Local.
func (b *builder) countRows() (local []entry) {
	counted := map[*port]bool{}
	for _, entry := range b.entries {
		spec := entry.port.spec
		if spec == nil || !entry.Spreads() || counted[entry.port] {
			continue
		}
		counted[entry.port] = true
		if !spec.spreads {
			spec.spreads = true
			entry.port.service.spreads += max(1, zonesOf(entry.Frontend)) * spec.size.Rows
		}
	}
	for _, entry := range b.entries {
		spec := entry.port.spec
		if spec == nil || entry.Key.Protocol != forwarding.ProtocolTCP || counted[entry.port] {
			continue
		}
		counted[entry.port] = true
		local = append(local, entry)
		if !spec.spreads && spec.at == (forwarding.FrontendKey{}) {
			spec.at = entry.Key
			entry.port.service.addLocal(spec)
		}
	}
	return local
}

func (s *service) addLocal(r *tableSpec) { s.locals = append(s.locals, local{r.at, r.size.Rows}) }

func forLocal(rows int) int { return rows - rows/localReserve }

func (e entry) findsTable() bool { return e.port.hasLocalTable && len(e.Weights) > 0 }

func zonesOf(frontend *model.Frontend) (zones int) {
	for _, weights := range frontend.Zones {
		if weights != nil {
			zones++
		}
	}
	return zones
}
