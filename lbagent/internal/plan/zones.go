// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// budgetZones decides which Service ports have one node table per zone. The decision depends only on the
// model and the limit, because all nodes must agree on it: a node looks up a flow in the same table that
// another node forwarded it by. Each spec of a spreading Service port first gets one table; the remaining
// rows go to zonal Service ports in frontend order.
func (b *builder) budgetZones() {
	left := rowsIn(b.limits)
	counted, specs := map[*port]bool{}, map[*tableSpec]bool{}
	for _, entry := range b.entries {
		spec := entry.port.spec
		if !entry.Spreads() || spec == nil {
			continue
		}
		counted[entry.port] = true
		if !specs[spec] {
			specs[spec] = true
			left -= spec.size.Rows
		}
	}
	for _, entry := range b.entries {
		zones := zonesOf(entry.Frontend)
		if zones == 0 || !counted[entry.port] || entry.port.zoned {
			continue
		}
		rows := (zones - 1) * entry.port.spec.size.Rows
		if left < rows {
			b.zonesFull(entry.Frontend)
			continue
		}
		left -= rows
		entry.port.zoned = true
	}
}

func (b *builder) isZonal() bool {
	return slices.ContainsFunc(b.entries, func(e entry) bool { return hasZones(e.Frontend) })
}

func hasZones(frontend *model.Frontend) bool {
	return slices.ContainsFunc(frontend.Zones[:], func(weights map[forwarding.NodeID]uint32) bool { return weights != nil })
}

// addZones places the node tables of other zones for the placed Service ports.
func (b *builder) addZones(entries []entry) {
	b.budgetZones()
	seen := map[*port]bool{}
	for _, entry := range entries {
		port := entry.port
		if !port.placed || port.place.table == 0 || seen[port] {
			continue
		}
		seen[port] = true
		previous := b.previousZones(port)
		if port.zoned {
			port.place.zones = b.placeZones(entry)
		}
		kept := slices.Collect(maps.Values(port.place.zones))
		gone := slices.DeleteFunc(previous, func(slot forwarding.NodeTableSlot) bool { return slices.Contains(kept, slot) })
		b.join(append(kept, port.place.table), gone)
		b.setZones(port)
	}
}

func (b *builder) previousZones(port *port) []forwarding.NodeTableSlot {
	var previous []forwarding.NodeTableSlot
	for _, key := range port.keys {
		frontend := b.have.Frontends[key]
		for _, slot := range frontend.Zones {
			if slot != 0 && slot != frontend.Table && b.have.NodeTables[slot] != nil && !slices.Contains(previous, slot) {
				previous = append(previous, slot)
			}
		}
	}
	return previous
}

// placeZones returns the slots of a frontend's tables of other zones. It returns nil if they do not all fit
// beside tables that are still to be removed.
func (b *builder) placeZones(entry entry) map[string]forwarding.NodeTableSlot {
	zones := map[string]forwarding.NodeTableSlot{}
	var fresh []forwarding.NodeTableSlot
	for number, weights := range entry.Zones {
		if weights == nil || forwarding.Zone(number) == b.model.Self.Zone {
			continue
		}
		zone := b.model.Zones[number]
		slot, found := b.zoneSlot(entry, zone)
		switch {
		case found:
		case len(weights) == 0:
			// No endpoint in the zone and no table to hold.
			continue
		default:
			if slot, found = b.tableSlots.allocate(entry.port.spec.size.Rows); !found {
				b.zonesFull(entry.Frontend)
				return nil
			}
			fresh = append(fresh, slot)
		}
		zones[zone] = slot
	}
	b.weighZones(entry, zones)
	b.recordHistory(entry.port, fresh)
	return zones
}

func (b *builder) zoneSlot(entry entry, zone string) (forwarding.NodeTableSlot, bool) {
	for _, key := range entry.port.keys {
		for _, slot := range b.have.Frontends[key].Zones {
			if b.tableOwners[slot] == entry.port.in(zone) && b.tableSlots.retain(slot) && b.have.NodeTables[slot] != nil &&
				(len(entry.Weights) == 0 || slot.Rows() == entry.port.spec.size.Rows) {
				return slot, true
			}
		}
	}
	return 0, false
}

func (b *builder) weighZones(entry entry, zones map[string]forwarding.NodeTableSlot) {
	own, size := entry.port.place.table, entry.port.spec.size
	for number, weights := range entry.Zones {
		slot, placed := zones[b.zoneName(number)]
		if forwarding.Zone(number) == b.model.Self.Zone {
			slot, placed = own, true
		}
		switch {
		case !placed || weights == nil:
		case len(weights) > 0:
			b.weights[slot] = weightInput{weights, sizeAt(slot, size)}
		case slot != own:
			b.held = append(b.held, slot)
		}
	}
}

func (b *builder) zoneName(number int) string {
	if number < len(b.model.Zones) {
		return b.model.Zones[number]
	}
	return ""
}

// recordHistory makes new tables of zones inherit the owners of all current tables of the port, because
// connections that enter through nodes of the zone used one of them.
func (b *builder) recordHistory(port *port, fresh []forwarding.NodeTableSlot) {
	own, previous := b.ownTable(port)
	if own == 0 {
		own = previous
	}
	for _, slot := range fresh {
		b.histories[slot] = b.have.NodeTables[own]
		if b.have.NodeTables[own] == nil {
			continue
		}
		for _, other := range b.previousZones(port) {
			b.joins[slot] = append(b.joins[slot], b.have.NodeTables[other])
		}
	}
}

// join merges the owners of removed tables into the chains of the port's remaining tables.
func (b *builder) join(kept, gone []forwarding.NodeTableSlot) {
	for _, slot := range kept {
		for _, other := range gone {
			if b.predecessor(slot) != nil {
				b.joins[slot] = append(b.joins[slot], b.have.NodeTables[other])
			}
		}
	}
}

func (b *builder) setZones(port *port) {
	place := port.place
	var zones [forwarding.Zones]forwarding.NodeTableSlot
	for number := range min(forwarding.Zones, len(b.model.Zones)) {
		zones[number] = place.zones[b.model.Zones[number]]
	}
	if len(place.zones) > 0 {
		zones[b.model.Self.Zone] = place.table
	}
	for _, key := range port.keys {
		if frontend, planned := b.want.Frontends[key]; planned && frontend.Table == place.table {
			frontend.Zones = zones
			b.want.Frontends[key] = frontend
		}
	}
}
