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
func (d *draft) budgetZones() {
	left := rowsIn(d.limits)
	counted, specs := map[*port]bool{}, map[*tableSpec]bool{}
	for _, entry := range d.entries {
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
	for _, entry := range d.entries {
		zones := zonesOf(entry.Frontend)
		if zones == 0 || !counted[entry.port] || entry.port.zoned {
			continue
		}
		rows := (zones - 1) * entry.port.spec.size.Rows
		if left < rows {
			d.zonesFull(entry.Frontend)
			continue
		}
		left -= rows
		entry.port.zoned = true
	}
}

func (d *draft) isZonal() bool {
	return slices.ContainsFunc(d.entries, func(e entry) bool { return hasZones(e.Frontend) })
}

func hasZones(frontend *model.Frontend) bool {
	return slices.ContainsFunc(frontend.Zones[:], func(weights map[forwarding.NodeID]uint32) bool { return weights != nil })
}

// addZones places the node tables of other zones for the placed Service ports.
func (d *draft) addZones(entries []entry) {
	d.budgetZones()
	seen := map[*port]bool{}
	for _, entry := range entries {
		port := entry.port
		if !port.placed || port.place.table == 0 || seen[port] {
			continue
		}
		seen[port] = true
		previous := d.previousZones(port)
		if port.zoned {
			port.place.zones = d.placeZones(entry)
		}
		kept := slices.Collect(maps.Values(port.place.zones))
		gone := slices.DeleteFunc(previous, func(slot forwarding.NodeTableSlot) bool { return slices.Contains(kept, slot) })
		d.join(append(kept, port.place.table), gone)
		d.setZones(port)
	}
}

func (d *draft) previousZones(port *port) []forwarding.NodeTableSlot {
	var previous []forwarding.NodeTableSlot
	for _, key := range port.keys {
		frontend := d.have.Frontends[key]
		for _, slot := range frontend.Zones {
			if slot != 0 && slot != frontend.Table && d.have.NodeTables[slot] != nil && !slices.Contains(previous, slot) {
				previous = append(previous, slot)
			}
		}
	}
	return previous
}

// placeZones returns the slots of a frontend's tables of other zones. It returns nil if they do not all fit
// beside tables that are still to be removed.
func (d *draft) placeZones(entry entry) map[string]forwarding.NodeTableSlot {
	zones := map[string]forwarding.NodeTableSlot{}
	var fresh []forwarding.NodeTableSlot
	for number, weights := range entry.Zones {
		if weights == nil || forwarding.Zone(number) == d.model.Self.Zone {
			continue
		}
		zone := d.model.Zones[number]
		slot, found := d.zoneSlot(entry, zone)
		switch {
		case found:
		case len(weights) == 0:
			// No endpoint in the zone and no table to hold.
			continue
		default:
			if slot, found = d.tableSlots.allocate(entry.port.spec.size.Rows); !found {
				d.zonesFull(entry.Frontend)
				return nil
			}
			fresh = append(fresh, slot)
		}
		zones[zone] = slot
	}
	d.weighZones(entry, zones)
	d.recordHistory(entry.port, fresh)
	return zones
}

func (d *draft) zoneSlot(entry entry, zone string) (forwarding.NodeTableSlot, bool) {
	for _, key := range entry.port.keys {
		for _, slot := range d.have.Frontends[key].Zones {
			if d.tableOwners[slot] == entry.port.in(zone) && d.tableSlots.retain(slot) && d.have.NodeTables[slot] != nil &&
				(len(entry.Weights) == 0 || slot.Rows() == entry.port.spec.size.Rows) {
				return slot, true
			}
		}
	}
	return 0, false
}

func (d *draft) weighZones(entry entry, zones map[string]forwarding.NodeTableSlot) {
	own, size := entry.port.place.table, entry.port.spec.size
	for number, weights := range entry.Zones {
		slot, placed := zones[d.zoneName(number)]
		if forwarding.Zone(number) == d.model.Self.Zone {
			slot, placed = own, true
		}
		switch {
		case !placed || weights == nil:
		case len(weights) > 0:
			d.weights[slot] = weighed{weights, sizeAt(slot, size)}
		case slot != own:
			d.held = append(d.held, slot)
		}
	}
}

func (d *draft) zoneName(number int) string {
	if number < len(d.model.Zones) {
		return d.model.Zones[number]
	}
	return ""
}

// recordHistory makes new tables of zones inherit the owners of all current tables of the port, because
// connections that enter through nodes of the zone used one of them.
func (d *draft) recordHistory(port *port, fresh []forwarding.NodeTableSlot) {
	own, previous := d.ownTable(port)
	if own == 0 {
		own = previous
	}
	for _, slot := range fresh {
		d.histories[slot] = d.have.NodeTables[own]
		if d.have.NodeTables[own] == nil {
			continue
		}
		for _, other := range d.previousZones(port) {
			d.joins[slot] = append(d.joins[slot], d.have.NodeTables[other])
		}
	}
}

// join merges the owners of removed tables into the chains of the port's remaining tables.
func (d *draft) join(kept, gone []forwarding.NodeTableSlot) {
	for _, slot := range kept {
		for _, other := range gone {
			if d.predecessor(slot) != nil {
				d.joins[slot] = append(d.joins[slot], d.have.NodeTables[other])
			}
		}
	}
}

func (d *draft) setZones(port *port) {
	place := port.place
	var zones [forwarding.Zones]forwarding.NodeTableSlot
	for number := range min(forwarding.Zones, len(d.model.Zones)) {
		zones[number] = place.zones[d.model.Zones[number]]
	}
	if len(place.zones) > 0 {
		zones[d.model.Self.Zone] = place.table
	}
	for _, key := range port.keys {
		if frontend, planned := d.want.Frontends[key]; planned && frontend.Table == place.table {
			frontend.Zones = zones
			d.want.Frontends[key] = frontend
		}
	}
}
