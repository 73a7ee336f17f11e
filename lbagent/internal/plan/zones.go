// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// budgetZones decides which backends have a node table for each zone. All nodes
// must decide alike, for a flow that one of them has sent by a zone's table is
// looked for by others in the same one: so it depends on the model and the limit
// alone. Every backend has one table; what is left goes to those that ask for zones,
// in the order of their frontends.
func (d *draft) budgetZones() {
	d.zoned = map[backend]bool{}
	left := d.limits.Tables
	counted := map[backend]bool{}
	for i := range d.model.Frontends {
		frontend := &d.model.Frontends[i]
		name := backendOf(frontend)
		if !counted[name] && frontend.Spreads() && (len(frontend.Weights) > 0 || frontend.Living) {
			counted[name] = true
			left--
		}
	}
	for i := range d.model.Frontends {
		frontend := &d.model.Frontends[i]
		name := backendOf(frontend)
		zones := 0
		for _, weights := range frontend.Zones {
			if weights != nil {
				zones++
			}
		}
		if zones == 0 || !counted[name] || d.zoned[name] {
			continue
		}
		if left < zones-1 {
			d.zonesFull(frontend)
			continue
		}
		left -= zones - 1
		d.zoned[name] = true
	}
}

func (d *draft) zonesFull(frontend *model.Frontend) {
	d.problems = append(d.problems, model.Problem{
		Object: serviceOf(frontend),
		Reason: millracev1alpha1.ReasonMapFull,
		Message: fmt.Sprintf("frontend %s: its clients get all endpoints and not those of the zone, a node has room for %d node tables, and each zone takes one; raise --max-tables of all agents",
			frontend.Key, d.limits.Tables),
	})
}

// addZones gives the backends that were placed the node tables of other zones.
func (d *draft) addZones() {
	d.budgetZones()
	seen := map[backend]bool{}
	for _, frontend := range d.byPrecedence() {
		name := backendOf(frontend)
		place, placed := d.backends[name]
		if !placed || place.table == 0 || seen[name] {
			continue
		}
		seen[name] = true
		former := d.formerZones(name)
		if d.zoned[name] {
			place.zones = d.placeZones(frontend)
			d.backends[name] = place
		}
		kept := slices.Collect(maps.Values(place.zones))
		gone := slices.DeleteFunc(former, func(slot program.TableSlot) bool { return slices.Contains(kept, slot) })
		d.join(append(kept, place.table), gone)
		d.setZones(name, place)
	}
}

// formerZones are the tables of other zones that the backend's frontends have in
// the maps, in the order of the zones' numbers.
func (d *draft) formerZones(name backend) []program.TableSlot {
	var former []program.TableSlot
	for _, key := range d.keys[name] {
		frontend := d.have.Frontends[key]
		for _, slot := range frontend.Zones {
			if slot != 0 && slot != frontend.Table && d.have.Tables[slot] != nil && !slices.Contains(former, slot) {
				former = append(former, slot)
			}
		}
	}
	return former
}

// placeZones returns the slots of a frontend's tables of other zones; none where they do
// not all fit yet beside what is still to be removed.
func (d *draft) placeZones(frontend *model.Frontend) map[string]program.TableSlot {
	name := backendOf(frontend)
	zones := map[string]program.TableSlot{}
	var fresh []program.TableSlot
	for number, weights := range frontend.Zones {
		if weights == nil || program.Zone(number) == d.model.Self.Zone {
			continue
		}
		zone := d.model.Zones[number]
		slot, found := d.zoneSlot(name, zone)
		switch {
		case found:
		case len(weights) == 0:
			// There is nothing to hold.
			continue
		default:
			if slot, found = d.tableSlots.take(); !found {
				d.zonesFull(frontend)
				return nil
			}
			fresh = append(fresh, slot)
		}
		zones[zone] = slot
	}
	d.weighZones(frontend, zones)
	d.recordHistory(name, fresh)
	return zones
}

// zoneSlot returns the slot that a backend's table of another zone has in the maps.
func (d *draft) zoneSlot(name backend, zone string) (program.TableSlot, bool) {
	for _, key := range d.keys[name] {
		for _, slot := range d.have.Frontends[key].Zones {
			if d.tableOwners[slot] == name.in(zone) && d.tableSlots.keep(slot) && d.have.Tables[slot] != nil {
				return slot, true
			}
		}
	}
	return 0, false
}

// weighZones notes what the tables of the zones, this node's own included, are
// computed from.
func (d *draft) weighZones(frontend *model.Frontend, zones map[string]program.TableSlot) {
	own := d.backends[backendOf(frontend)].table
	for number, weights := range frontend.Zones {
		slot, placed := zones[d.zoneName(number)]
		if program.Zone(number) == d.model.Self.Zone {
			slot, placed = own, true
		}
		switch {
		case !placed || weights == nil:
		case len(weights) > 0:
			d.weights[slot] = weights
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

// recordHistory lets new tables of zones go on from all those that the backend has in the
// maps: connections that come in by nodes of the zone went by one of them.
func (d *draft) recordHistory(name backend, fresh []program.TableSlot) {
	own, former := d.ownTable(name)
	if own == 0 {
		own = former
	}
	for _, slot := range fresh {
		d.histories[slot] = d.have.Tables[own]
		if d.have.Tables[own] == nil {
			continue
		}
		for _, other := range d.formerZones(name) {
			d.joins[slot] = append(d.joins[slot], d.have.Tables[other])
		}
	}
}

// join lets the tables that a backend keeps take over the owners of those that go.
func (d *draft) join(kept, gone []program.TableSlot) {
	for _, slot := range kept {
		for _, other := range gone {
			if d.have.Tables[slot] != nil {
				d.joins[slot] = append(d.joins[slot], d.have.Tables[other])
			}
		}
	}
}

// setZones tells the backend's frontends their tables by zone.
func (d *draft) setZones(name backend, place placement) {
	var zones [program.Zones]program.TableSlot
	for number := range min(program.Zones, len(d.model.Zones)) {
		zones[number] = place.zones[d.model.Zones[number]]
	}
	if len(place.zones) > 0 {
		zones[d.model.Self.Zone] = place.table
	}
	for _, key := range d.keys[name] {
		if frontend, planned := d.want.Frontends[key]; planned && frontend.Table == place.table {
			frontend.Zones = zones
			d.want.Frontends[key] = frontend
		}
	}
}
