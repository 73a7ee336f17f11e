// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

func checkPlan(t *rapid.T, have, want *forwarding.State, m *model.Model, limits forwarding.Limits) {
	for key, before := range have.Frontends {
		if after, found := want.Frontends[key]; found && after.ID != before.ID {
			t.Fatalf("%s changed its id from %d to %d", key, before.ID, after.ID)
		}
	}
	for id, endpoint := range want.Endpoints {
		if before, found := have.Endpoints[id]; found && before != endpoint {
			t.Fatalf("id %d changed from endpoint %v to %v", id, before, endpoint)
		}
	}
	ids := map[forwarding.FrontendID]bool{}
	for _, f := range m.Frontends {
		planned, found := want.Frontends[f.Key]
		if !found {
			continue
		}
		if ids[planned.ID] || planned.ID == 0 {
			t.Fatalf("frontend id %d is 0 or used twice", planned.ID)
		}
		ids[planned.ID] = true
		if limits != ample && isBorrowed(want, m, f) {
			continue
		}
		if planned.Table != 0 && planned.Zones == ([forwarding.Zones]forwarding.NodeTableSlot{}) {
			before := have.NodeTables[planned.Table]
			if before == nil {
				before = previousTable(have, m, f)
			}
			for i, row := range *want.NodeTables[planned.Table] {
				if len(f.Weights) > 0 && f.Weights[row.Primary] == 0 {
					t.Fatalf("%s: row %d belongs to node %d, which has no endpoints", f.Key, i, row.Primary)
				}
				if len(f.Weights) == 0 && row != (*before)[i] && exists(m, (*before)[i]) &&
					!joined(have, m, f, i, (*before)[i], row) {
					t.Fatalf("%s: row %d changed from %+v to %+v although no other node exists", f.Key, i, (*before)[i], row)
				}
			}
		}
		checkZones(t, f, planned, want, m.Self.Zone)
		if planned.Endpoints != 0 {
			for i, id := range want.EndpointTables[planned.Endpoints] {
				if !slices.Contains(f.Endpoints, want.Endpoints[id]) {
					t.Fatalf("%s: row %d selects %v, which is not a usable endpoint", f.Key, i, want.Endpoints[id])
				}
			}
		}
	}
}

// previousTable returns the first table of the frontends of f's Service port, which a new table copies.
func previousTable(have *forwarding.State, m *model.Model, f *model.Frontend) *forwarding.NodeTable {
	for i := range m.Frontends {
		if portOf(m.Frontends[i]) == portOf(f) {
			if slot := have.Frontends[m.Frontends[i].Key].Table; slot != 0 {
				return have.NodeTables[slot]
			}
		}
	}
	return nil
}

func isBorrowed(want *forwarding.State, m *model.Model, f *model.Frontend) bool {
	slot := want.Frontends[f.Key].Table
	return slot != 0 && slices.ContainsFunc(m.Frontends, func(other *model.Frontend) bool {
		return want.Frontends[other.Key].Table == slot && !maps.Equal(other.Weights, f.Weights)
	})
}

func changesHands(before, m *model.Model) bool {
	ports := map[forwarding.FrontendKey]servicePort{}
	for i := range before.Frontends {
		ports[before.Frontends[i].Key] = portOf(before.Frontends[i])
	}
	return slices.ContainsFunc(m.Frontends, func(f *model.Frontend) bool {
		previous, found := ports[f.Key]
		return found && previous != portOf(f)
	})
}

// checkKept reports lost former owners. A row with an unchanged owner must retain all; otherwise, it may lose
// the oldest.
func checkKept(t *rapid.T, have, want *forwarding.State, before, m *model.Model) {
	ports := map[forwarding.FrontendKey]servicePort{}
	zonal := map[servicePort]bool{}
	for _, m := range []*model.Model{before, m} {
		for i := range m.Frontends {
			f := m.Frontends[i]
			zonal[portOf(f)] = zonal[portOf(f)] || hasZones(f)
		}
	}
	for i := range before.Frontends {
		ports[before.Frontends[i].Key] = portOf(before.Frontends[i])
	}
	for i := range m.Frontends {
		f := m.Frontends[i]
		old, next := have.NodeTables[have.Frontends[f.Key].Table], want.NodeTables[want.Frontends[f.Key].Table]
		// Merged rows may not have room for all former owners.
		if old == nil || next == nil || len(*next) < len(*old) || ports[f.Key] != portOf(f) || zonal[portOf(f)] {
			continue
		}
		for number, now := range *next {
			row := (*old)[number*len(*old)/len(*next)]
			owners := append([]forwarding.NodeID{row.Primary}, row.Chain[:row.History]...)
			if now.Primary != row.Primary {
				owners = owners[:min(len(owners), forwarding.ChainLength)]
			}
			kept := append([]forwarding.NodeID{now.Primary}, now.Chain[:now.History]...)
			for _, node := range owners {
				if node != 0 && !slices.Contains(kept, node) && exists(m, forwarding.Row{Primary: node}) {
					t.Fatalf("%s: row %d changed from %+v to %+v and lost node %d", f.Key, number, row, now, node)
				}
			}
		}
	}
}

// checkShared reports tables of one Service that could be merged.
func checkShared(t *rapid.T, want *forwarding.State, m *model.Model) {
	for i := range m.Frontends {
		for j := range m.Frontends[:i] {
			a, b := m.Frontends[i], m.Frontends[j]
			first, second := want.Frontends[a.Key].Table, want.Frontends[b.Key].Table
			if a.Service != b.Service || first == 0 || second == 0 || hasZones(a) || hasZones(b) || len(a.Weights) == 0 {
				continue
			}
			if equal := maps.Equal(a.Weights, b.Weights) && sizeOf(m, a) == sizeOf(m, b); !equal && first == second {
				t.Fatalf("%s and %s have different weights, but share a table", a.Key, b.Key)
			} else if equal && first != second && canJoin(want.NodeTables[first], want.NodeTables[second]) {
				t.Fatalf("%s and %s have equal weights, but separate tables", a.Key, b.Key)
			}
		}
	}
}

// sizeOf returns the size of the node table of the Service port's first frontend.
func sizeOf(m *model.Model, of *model.Frontend) table.Size {
	for _, f := range m.Frontends {
		if portOf(f) == portOf(of) {
			return SizeFor(f)
		}
	}
	return SizeFor(of)
}

// canJoin reports whether the rows have room for the former owners of both tables and cannot have lost any.
func canJoin(a, b *forwarding.NodeTable) bool {
	for i, row := range *a {
		all, other := map[forwarding.NodeID]bool{}, (*b)[i]
		for _, node := range slices.Concat(row.Chain[:row.History], other.Chain[:other.History]) {
			all[node] = true
		}
		if len(all) > forwarding.ChainLength || max(row.History, other.History) == forwarding.ChainLength {
			return false
		}
	}
	return true
}

func checkZones(t *rapid.T, f *model.Frontend, planned forwarding.Frontend, want *forwarding.State, own forwarding.Zone) {
	if planned.Zones == ([forwarding.Zones]forwarding.NodeTableSlot{}) {
		return
	}
	if planned.Zones[own] != planned.Table {
		t.Fatalf("%s: the table of local zone %d is %d, zone tables are %v", f.Key, own, planned.Table, planned.Zones)
	}
	for zone, slot := range planned.Zones {
		if slot == 0 && len(f.Zones[zone]) > 0 || slot != 0 && f.Zones[zone] == nil {
			t.Fatalf("%s: zone %d has weights %v, but table %d", f.Key, zone, f.Zones[zone], slot)
		}
		if slot == 0 {
			continue
		}
		if want.NodeTables[slot] == nil {
			t.Fatalf("%s: table %d of zone %d is missing", f.Key, slot, zone)
		}
		for i, row := range *want.NodeTables[slot] {
			if len(f.Zones[zone]) > 0 && f.Zones[zone][row.Primary] == 0 {
				t.Fatalf("%s: row %d of zone %d belongs to node %d, which is not in the hints: %v", f.Key, i, zone, row.Primary, f.Zones[zone])
			}
		}
	}
}

// joined reports whether a row gained only owners from the tables of zones that a frontend of the same Service
// port may have left.
func joined(have *forwarding.State, m *model.Model, f *model.Frontend, number int, before, row forwarding.Row) bool {
	var zones []forwarding.NodeTableSlot
	for _, other := range m.Frontends {
		if before := have.Frontends[other.Key]; portOf(other) == portOf(f) {
			zones = append(zones, before.Zones[:]...)
		}
	}
	return row.Primary == before.Primary && !slices.ContainsFunc(row.Chain[:], func(node forwarding.NodeID) bool {
		return node != 0 && !slices.Contains(before.Chain[:], node) &&
			!slices.ContainsFunc(zones, func(slot forwarding.NodeTableSlot) bool {
				return slot != 0 && (*have.NodeTables[slot])[number].Primary == node
			})
	})
}

func exists(m *model.Model, row forwarding.Row) bool {
	for _, id := range append(row.Chain[:], row.Primary) {
		if id != 0 && !slices.ContainsFunc(m.Nodes, func(node model.Node) bool { return node.ID == id }) {
			return false
		}
	}
	return true
}

// checkSettled verifies that the same model requires no further changes, by this or a new planner, apart
// from merges after tables of zones were removed.
func checkSettled(t *rapid.T, want *forwarding.State, m *model.Model, limits forwarding.Limits) {
	again, _ := NewPlanner(want).Plan(want, m, limits)
	if len(again.NodeTables) < len(want.NodeTables) {
		want = again
		again, _ = NewPlanner(want).Plan(want, m, limits)
	}
	if ops := forwarding.Diff(want, again); len(ops) != 0 {
		t.Fatalf("a second plan has %d operations, first: %T", len(ops), ops[0])
	}
	checkShared(t, want, m)
}

// checkApply applies the plan operation by operation, possibly incompletely. At any time, each frontend must
// have its previous, its Service's current, or its wanted destination, and no map may exceed its capacity.
func checkApply(t *rapid.T, have, want *forwarding.State, last *model.Model, limits forwarding.Limits) *forwarding.State {
	ops := forwarding.Diff(have, want)
	done := len(ops)
	if rapid.Bool().Draw(t, "interrupted") {
		done = rapid.IntRange(0, len(ops)).Draw(t, "done")
	}
	state := have
	for i, op := range ops[:done] {
		state = forwarding.Apply(state, []forwarding.Op{op})
		for key, f := range state.Frontends {
			before := destinationOf(want, have.Frontends[key])
			if want.Frontends[key].Endpoints != have.Frontends[key].Endpoints && !isUnwritten(have, key, last) {
				checkOwner(t, leadsTo(have, key), before)
			}
			if !between(leadsTo(state, key), leadsTo(have, key), before, leadsTo(want, key)) {
				t.Fatalf("after operation %d, %T: %s (%+v, previously %+v, wanted %+v) has an unexpected target",
					i, op, key, f, have.Frontends[key], want.Frontends[key])
			}
		}
		if len(state.Frontends) > limits.Frontends || len(state.VIPs) > limits.VIPs || len(state.Endpoints) > limits.Endpoints ||
			state.NodeTableBlocks() > limits.NodeTables || len(state.EndpointTables) > limits.EndpointTables {
			t.Fatalf("after operation %d, %T: a map exceeds the limits %+v", i, op, limits)
		}
	}
	return state
}

// destination is the content that a frontend refers to, without ids and slots.
type destination struct {
	table     *forwarding.NodeTable
	endpoints *[forwarding.EndpointRows]forwarding.Endpoint
}

func leadsTo(s *forwarding.State, key forwarding.FrontendKey) destination {
	return destinationOf(s, s.Frontends[key])
}

func destinationOf(s *forwarding.State, f forwarding.Frontend) (d destination) {
	if f.Table != 0 {
		d.table = s.NodeTables[f.Table]
	}
	if table := s.EndpointTables[f.Endpoints]; table != nil {
		d.endpoints = &[forwarding.EndpointRows]forwarding.Endpoint{}
		for i, id := range table {
			d.endpoints[i] = s.Endpoints[id]
		}
	}
	return d
}

// isUnwritten reports whether a frontend still has the destination of a Service other than that in the last
// model.
func isUnwritten(have *forwarding.State, key forwarding.FrontendKey, last *model.Model) bool {
	to := leadsTo(have, key).endpoints
	return to != nil && last != nil && slices.ContainsFunc(last.Frontends, func(f *model.Frontend) bool {
		return f.Key == key && f.Service.Name != fmt.Sprintf("service%d", serviceNumber(to[0]))
	})
}

func serviceNumber(e forwarding.Endpoint) int {
	bytes := e.Address.As4()
	return (int(bytes[2])<<8 | int(bytes[3])) / 100
}

func checkOwner(t *rapid.T, have, target destination) {
	if have.endpoints == nil || target.endpoints == nil {
		return
	}
	for i := range target.endpoints {
		if serviceNumber(target.endpoints[i]) != serviceNumber(have.endpoints[i]) {
			t.Fatalf("row %d changed from %v to %v, which belongs to another Service", i, have.endpoints[i], target.endpoints[i])
		}
	}
}

func equalPointed[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// between reports whether each part of a destination is from one of the stages, since the tables of a frontend
// change one by one.
func between(d destination, stages ...destination) bool {
	return slices.ContainsFunc(stages, func(stage destination) bool { return d.table.Equal(stage.table) }) &&
		slices.ContainsFunc(stages, func(stage destination) bool { return equalPointed(d.endpoints, stage.endpoints) })
}
