// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type weights = map[forwarding.NodeID]uint32

// zonal returns a frontend with endpoints on three nodes: node 1 serves zone a, node 2 zone b, and all serve
// nodes without a zone.
func zonal(vip int, service string) model.Frontend {
	f := frontend(vip, service, 10*vip)
	f.Weights = weights{1: 1, 2: 1, 3: 1}
	f.Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{f.Weights, {1: 1}, {2: 1}}
	return f
}

func zonalModel(own forwarding.Zone, frontends ...model.Frontend) *model.Model {
	m := modelOf(frontends...)
	m.Zones, m.Self.Zone = []string{"", "a", "b"}, own
	for i := range m.Nodes {
		m.Nodes[i].Zone = forwarding.Zone(m.Nodes[i].ID % 3)
	}
	return m
}

func primariesOf(table *forwarding.NodeTable) map[forwarding.NodeID]int {
	owned := map[forwarding.NodeID]int{}
	for _, row := range *table {
		owned[row.Primary]++
	}
	return owned
}

func TestNodesHaveZones(t *testing.T) {
	state, _ := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), zonalModel(1, zonal(1, "web")), ample)
	for id, zone := range map[forwarding.NodeID]forwarding.Zone{2: 2, 3: 0} {
		if got := state.Nodes[id].Zone; got != zone {
			t.Errorf("zone of node %d = %d, want %d", id, got, zone)
		}
	}
}

func TestZonesHaveTables(t *testing.T) {
	var first *forwarding.State
	for own := range forwarding.Zone(3) {
		state, problems := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), zonalModel(own, zonal(1, "web")), ample)
		if len(problems) != 0 {
			t.Fatalf("problems = %v, want none", problems)
		}
		f := state.Frontends[key(1)]
		if f.Table != f.Zones[own] || f.Zones[0] == 0 || f.Zones[1] == 0 || f.Zones[2] == 0 || f.Zones[3] != 0 || len(state.NodeTables) != 3 {
			t.Fatalf("local zone %d: %+v with %d tables", own, f, len(state.NodeTables))
		}
		if first == nil {
			first = state
		}
		for zone := range 3 {
			if !state.NodeTables[f.Zones[zone]].Equal(first.NodeTables[first.Frontends[key(1)].Zones[zone]]) {
				t.Errorf("nodes in zones 0 and %d have different tables for zone %d", own, zone)
			}
		}
		if all := primariesOf(state.NodeTables[f.Zones[0]]); len(all) != 3 {
			t.Errorf("rows without a zone by node = %v, want three nodes", all)
		}
		if a := primariesOf(state.NodeTables[f.Zones[1]]); a[1] != minRows {
			t.Errorf("rows of zone a by node = %v, want only node 1", a)
		}
	}
}

// When hints appear or disappear, all tables retain the former owners of all zones, and the node's own table
// retains its slot.
func TestHintsComeAndGo(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	plain := zonal(1, "web")
	plain.Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{}
	have, _ = advance(t, p, have, zonalModel(1, plain), ample)
	slot := have.Frontends[key(1)].Table
	before := *have.NodeTables[slot]

	have, _ = advance(t, p, have, zonalModel(1, zonal(1, "web")), ample)
	zoned := have.Frontends[key(1)]
	if zoned.Table != slot {
		t.Errorf("the table moved from slot %d to %d", slot, zoned.Table)
	}
	for zone, owner := range map[forwarding.Zone]forwarding.NodeID{1: 1, 2: 2} {
		for i, row := range *have.NodeTables[zoned.Zones[zone]] {
			if previous := before[i].Primary; row.Primary != owner || previous != owner && (row.Chain[0] != previous || row.History == 0) {
				t.Fatalf("zone %d, row %d = %+v, previously %+v", zone, i, row, before[i])
			}
		}
	}

	for name, planner := range map[string]*Planner{"the same agent": p, "the next agent": NewPlanner(have)} {
		after, _ := advance(t, planner, have, zonalModel(1, plain), ample)
		f := after.Frontends[key(1)]
		if f.Table != slot || f.Zones != ([forwarding.Zones]forwarding.NodeTableSlot{}) || len(after.NodeTables) != 1 {
			t.Fatalf("%s: %+v with %d tables", name, f, len(after.NodeTables))
		}
		for i, row := range *after.NodeTables[slot] {
			holders := map[forwarding.NodeID]bool{row.Primary: true}
			for _, previous := range row.Chain[:row.History] {
				holders[previous] = true
			}
			if row.Primary != before[i].Primary || !holders[1] || !holders[2] || !holders[before[i].Primary] {
				t.Fatalf("%s: row %d = %+v, want the owners of all zones", name, i, row)
			}
		}
	}
}

func TestZoneWithoutEndpoints(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, _ = advance(t, p, have, zonalModel(2, zonal(1, "web")), ample)
	slots := have.Frontends[key(1)].Zones
	empty := zonal(1, "web")
	empty.Weights = weights{2: 1, 3: 1}
	empty.Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{empty.Weights, empty.Weights, {2: 1}}
	have, _ = advance(t, p, have, zonalModel(2, empty), ample)
	if after := have.Frontends[key(1)].Zones; after != slots {
		t.Errorf("the tables moved from %v to %v", slots, after)
	}
	for i, row := range *have.NodeTables[slots[1]] {
		if row.Chain[0] != 1 || row.Primary == 1 {
			t.Fatalf("row %d = %+v, want node 1 as previous owner", i, row)
		}
	}
}

func TestNewZone(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, _ = advance(t, p, have, zonalModel(1, zonal(1, "web")), ample)
	before := have.Frontends[key(1)]
	more := zonal(1, "web")
	more.Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{more.Weights, {1: 1}, {3: 1}, {2: 1}}
	m := zonalModel(1, more)
	m.Zones = []string{"", "a", "aa", "b"}
	have, _ = advance(t, p, have, m, ample)
	f := have.Frontends[key(1)]
	if f.Zones[0] != before.Zones[0] || f.Zones[1] != before.Zones[1] || f.Zones[3] != before.Zones[2] {
		t.Errorf("zone tables changed from %v to %v, want the same slots", before.Zones, f.Zones)
	}
	for i, row := range *have.NodeTables[f.Zones[2]] {
		known := map[forwarding.NodeID]bool{row.Primary: true, row.Chain[0]: true, row.Chain[1]: true}
		if row.Primary != 3 || !known[1] || !known[2] {
			t.Fatalf("row %d of the new zone = %+v, want the owners of all zones", i, row)
		}
	}
}

func TestZonesOutliveTheLastReadyEndpoint(t *testing.T) {
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, _ = advance(t, p, have, zonalModel(1, zonal(1, "web")), ample)
	before := have.Clone()
	unready := frontend(1, "web")
	unready.OnlyEstablished = true
	unready.Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{unready.Weights, unready.Weights, unready.Weights}
	have, problems := advance(t, p, have, zonalModel(1, unready), ample)
	f := have.Frontends[key(1)]
	if f.Zones != before.Frontends[key(1)].Zones || len(problems) != 0 {
		t.Fatalf("frontend = %+v, problems = %v", f, problems)
	}
	for _, slot := range f.Zones[:3] {
		if !have.NodeTables[slot].Equal(before.NodeTables[slot]) {
			t.Errorf("table %d was modified", slot)
		}
	}
	have, _ = advance(t, p, have, zonalModel(1, frontend(1, "web")), ample)
	if f := have.Frontends[key(1)]; len(have.NodeTables) != 0 || f.Zones != ([forwarding.Zones]forwarding.NodeTableSlot{}) {
		t.Errorf("%d tables remain without any endpoint, %+v", len(have.NodeTables), f)
	}
}

// If not all zonal frontends fit, the first ones have zones, on every node, and the others use all endpoints.
func TestNoRoomForZones(t *testing.T) {
	limits := ample
	limits.NodeTables = 5
	zonal := func(vip int, service string) model.Frontend {
		f := large(zonal(vip, service))
		f.Zones[0] = f.Weights
		return f
	}
	for own := range forwarding.Zone(3) {
		have := forwarding.NewState()
		p := NewPlanner(have)
		have, _ = advance(t, p, have, zonalModel(own, zonal(2, "late")), limits)
		m := zonalModel(own, zonal(1, "web"), zonal(2, "late"))
		var problems []Problem
		for range 3 {
			have, problems = advance(t, p, have, m, limits)
		}
		if f := have.Frontends[key(1)]; f.Zones == ([forwarding.Zones]forwarding.NodeTableSlot{}) {
			t.Errorf("local zone %d: the first frontend has no zone tables: %+v", own, f)
		}
		f := have.Frontends[key(2)]
		if f.Zones != ([forwarding.Zones]forwarding.NodeTableSlot{}) || len(primariesOf(have.NodeTables[f.Table])) != 3 {
			t.Errorf("local zone %d: %+v, want one table with all nodes", own, f)
		}
		if len(problems) != 1 || problems[0].Reason != millracev1beta1.ReasonMapFull || problems[0].Object.Name != "late" ||
			!strings.Contains(problems[0].Message, "room for 5 node tables") {
			t.Errorf("problems = %v", problems)
		}
	}
}
