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
func (d *draft) budgetLocal() {
	left := forLocal(rowsIn(d.limits))
	counted := map[*port]bool{}
	for _, entry := range d.entries {
		recipe := entry.port.recipe
		if recipe == nil || !entry.Spreads() || counted[entry.port] {
			continue
		}
		counted[entry.port] = true
		if !recipe.budgeted {
			recipe.budgeted, recipe.finds = true, true
			left -= max(1, zonesOf(entry.Frontend)) * recipe.size.Rows
		}
	}
	for _, entry := range d.entries {
		recipe := entry.port.recipe
		if recipe == nil || entry.Key.Protocol != forwarding.ProtocolTCP || counted[entry.port] {
			continue
		}
		counted[entry.port] = true
		if !recipe.budgeted {
			recipe.budgeted, recipe.finds = true, left >= recipe.size.Rows
			left -= recipe.size.Rows
		}
		entry.port.finds, entry.port.yields = recipe.finds, !recipe.finds
		if entry.port.yields {
			d.localFull(entry.Frontend)
		}
	}
}

// forLocal is how many of the rows Local Service ports may have together with the others.
func forLocal(rows int) int { return rows - rows/localReserve }

// finds reports whether a Local Service port has a node table to find connections by.
func (d *draft) finds() bool {
	for _, port := range d.ports {
		if port.finds {
			return true
		}
	}
	return false
}

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
