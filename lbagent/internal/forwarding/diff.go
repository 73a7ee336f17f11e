// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// Diff returns the operations from have to want, in an order that keeps every frontend complete:
//
//  1. Additions and changes: this node, other nodes, VIPs, endpoints, endpoint tables,
//     rows, source ranges, frontends.
//  2. Removals: frontends, their zones, VIPs, source ranges, node tables, endpoint
//     tables, endpoints, nodes.
//
// Each kind is sorted, so that equal states give equal operations.
func Diff(have, want *State) []Op {
	return append(additions(have, want), removals(have, want)...)
}

// Split splits the result of Diff into additions and removals, so that routes of removed VIPs can be withdrawn
// in between.
func Split(ops []Op) (additions, removals []Op) {
	for _, op := range ops {
		if isRemoval(op) {
			removals = append(removals, op)
		} else {
			additions = append(additions, op)
		}
	}
	return additions, removals
}

func isRemoval(op Op) bool {
	switch op.(type) {
	case DeleteFrontend, RemoveZones, DeleteVIP, DeleteSourceRange, ClearTable, ClearEndpointTable, DeleteEndpoint, DeleteNode:
		return true
	default:
		return false
	}
}

func additions(have, want *State) []Op {
	var ops []Op
	if have.Self != want.Self {
		ops = append(ops, SetSelf{Self: want.Self})
	}
	for _, id := range changed(have.Nodes, want.Nodes, cmp.Compare) {
		ops = append(ops, PutNode{ID: id, Node: want.Nodes[id]})
	}
	for _, address := range onlyIn(want.VIPs, have.VIPs, netip.Addr.Compare) {
		ops = append(ops, PutVIP{Address: address})
	}
	for _, id := range changed(have.Endpoints, want.Endpoints, cmp.Compare) {
		ops = append(ops, PutEndpoint{ID: id, Endpoint: want.Endpoints[id]})
	}
	for _, slot := range changed(have.EndpointTables, want.EndpointTables, cmp.Compare) {
		if !have.EndpointTables[slot].Equal(want.EndpointTables[slot]) {
			ops = append(ops, PutEndpointTable{Slot: slot, Table: want.EndpointTables[slot]})
		}
	}
	frontends := changed(have.Frontends, want.Frontends, FrontendKey.Compare)
	previous := previousTables(frontends, have, want)
	for _, slot := range changed(have.NodeTables, want.NodeTables, cmp.Compare) {
		if op := changedRows(slot, have.NodeTables[slot], want.NodeTables[slot]); len(op.Changed) > 0 {
			op.Previous = previous[slot]
			ops = append(ops, op)
		}
	}
	for _, prefix := range onlyIn(want.SourceRanges, have.SourceRanges, SourceRange.Compare) {
		ops = append(ops, PutSourceRange{Range: prefix})
	}
	for _, key := range frontends {
		before, frontend := have.Frontends[key], want.Frontends[key]
		if removesZones(before, frontend) {
			frontend.Zones = before.Zones
		}
		if frontend != before {
			ops = append(ops, PutFrontend{Key: key, Frontend: frontend})
		}
	}
	return ops
}

func previousTables(frontends []FrontendKey, have, want *State) map[NodeTableSlot]NodeTableSlot {
	previous := map[NodeTableSlot]NodeTableSlot{}
	add := func(slot, before NodeTableSlot) {
		if slot != before && have.NodeTables[slot] == nil && have.NodeTables[before] != nil && previous[slot] == 0 {
			previous[slot] = before
		}
	}
	for _, key := range frontends {
		before, frontend := have.Frontends[key], want.Frontends[key]
		add(frontend.Table, before.Table)
		for zone, slot := range frontend.Zones {
			add(slot, cmp.Or(before.Zones[zone], before.Table))
		}
	}
	return previous
}

// removesZones reports whether a frontend drops its zones' tables and keeps its own. Other nodes may still send
// packets by the zones' tables.
func removesZones(have, want Frontend) bool {
	none := [Zones]NodeTableSlot{}
	return have.Zones != none && want.Zones == none && have.ID == want.ID && have.Table == want.Table
}

func removals(have, want *State) []Op {
	var ops []Op
	for _, key := range onlyIn(have.Frontends, want.Frontends, FrontendKey.Compare) {
		ops = append(ops, DeleteFrontend{Key: key})
	}
	for _, key := range changed(have.Frontends, want.Frontends, FrontendKey.Compare) {
		if removesZones(have.Frontends[key], want.Frontends[key]) {
			ops = append(ops, RemoveZones{Key: key})
		}
	}
	for _, address := range onlyIn(have.VIPs, want.VIPs, netip.Addr.Compare) {
		ops = append(ops, DeleteVIP{Address: address})
	}
	for _, prefix := range onlyIn(have.SourceRanges, want.SourceRanges, SourceRange.Compare) {
		ops = append(ops, DeleteSourceRange{Range: prefix})
	}
	for _, slot := range onlyIn(have.NodeTables, want.NodeTables, cmp.Compare) {
		ops = append(ops, ClearTable{Slot: slot})
	}
	for _, slot := range onlyIn(have.EndpointTables, want.EndpointTables, cmp.Compare) {
		ops = append(ops, ClearEndpointTable{Slot: slot})
	}
	for _, id := range onlyIn(have.Endpoints, want.Endpoints, cmp.Compare) {
		ops = append(ops, DeleteEndpoint{ID: id})
	}
	for _, id := range onlyIn(have.Nodes, want.Nodes, cmp.Compare) {
		ops = append(ops, DeleteNode{ID: id})
	}
	return ops
}

func changed[K, V comparable](have, want map[K]V, compare func(K, K) int) []K {
	if delta.IsSameMap(have, want) {
		return nil
	}
	var keys []K
	for key, value := range want {
		if before, found := have[key]; !found || before != value {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compare)
	return keys
}

func onlyIn[K comparable, V any](a, b map[K]V, compare func(K, K) int) []K {
	if delta.IsSameMap(a, b) {
		return nil
	}
	var keys []K
	for key := range a {
		if _, found := b[key]; !found {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compare)
	return keys
}

var allRows = func() []uint32 {
	rows := make([]uint32, MaxRows)
	for i := range rows {
		rows[i] = uint32(i)
	}
	return rows
}()

// changedRows returns the rows of want that differ from have. The content of an unused slot is unknown, so that
// a nil have selects all rows.
func changedRows(slot NodeTableSlot, have, want *NodeTable) PutRows {
	if have == nil && want != nil {
		return PutRows{Slot: slot, Fresh: true, Changed: allRows[:len(*want)], Rows: *want, Whole: want}
	}
	op := PutRows{Slot: slot}
	if have == want {
		return op
	}
	previous := *have
	for i, row := range *want {
		if previous[i] != row {
			op.Changed = append(op.Changed, uint32(i))
			op.Rows = append(op.Rows, row)
		}
	}
	return op
}
