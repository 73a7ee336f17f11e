// SPDX-License-Identifier: Apache-2.0

package forwarding

// SelfEntry stands for the entry written by SetSelf.
type SelfEntry struct{}

type writers map[any][]int

// dependencies returns, for each operation of Diff, the earlier operations it depends on: an addition depends
// on all entries it refers to, and a removal on all operations on former users of the entry.
func dependencies(have, want *State, ops []Op) [][]int {
	needs := make([][]int, len(ops))
	w, nodes := writers{}, tableNodes{}
	users := usersOf(have, ops)
	for i, op := range ops {
		for _, thing := range append(w.neededBy(op, want, nodes), users[Written(op)]...) {
			needs[i] = append(needs[i], w[thing]...)
		}
		thing := Written(op)
		w[thing] = append(w[thing], i)
		if op, ok := op.(SetSelf); ok {
			w[op.Self.ID] = append(w[op.Self.ID], i)
		}
	}
	return needs
}

// Written returns the object that an operation writes or removes: SelfEntry, a NodeID, a VIP (netip.Addr), an
// EndpointID, an EndpointTableSlot, a NodeTableSlot, a SourceSet or a FrontendKey.
func Written(op Op) any {
	switch op := op.(type) {
	case SetSelf:
		return SelfEntry{}
	case PutNode:
		return op.ID
	case PutVIP:
		return op.Address
	case PutEndpoint:
		return op.ID
	case PutEndpointTable:
		return op.Slot
	case PutRows:
		return op.Slot
	case PutSourceRange:
		return op.Range.Set
	case PutFrontend:
		return op.Key
	default:
		return removed(op)
	}
}

func removed(op Op) any {
	switch op := op.(type) {
	case DeleteNode:
		return op.ID
	case DeleteVIP:
		return op.Address
	case DeleteEndpoint:
		return op.ID
	case ClearEndpointTable:
		return op.Slot
	case ClearTable:
		return op.Slot
	case DeleteSourceRange:
		return op.Range.Set
	case RemoveZones:
		return op.Key
	case DeleteFrontend:
		return op.Key
	default:
		return nil
	}
}

func (w writers) neededBy(op Op, want *State, nodes tableNodes) []any {
	var things []any
	need := func(thing any) {
		if len(w[thing]) > 0 {
			things = append(things, thing)
		}
	}
	switch op := op.(type) {
	case PutEndpointTable:
		for _, id := range distinct(op.Table[:]) {
			need(id)
		}
	case PutRows:
		for _, id := range nodes.of(op) {
			need(id)
		}
	case PutFrontend:
		need(op.Key.VIP)
		need(op.Frontend.Endpoints)
		need(op.Frontend.Ranges)
		for _, slot := range slotsOf(op.Frontend) {
			need(slot)
		}
		if want.Frontends[op.Key].Zones != [Zones]NodeTableSlot{} {
			// The node's zone determines the table for its packets.
			need(SelfEntry{})
		}
	case RemoveZones:
		// Its own table inherits the owners of the zones' tables.
		need(op.Key)
		need(want.Frontends[op.Key].Table)
	case DeleteSourceRange:
		// A longer or shorter prefix of pools or aggregates may replace this one.
		if !op.Range.Set.OfFrontends() {
			need(op.Range.Set)
		}
	}
	return things
}

// usersOf returns, for each object to be removed, the objects that referred to it in have and are also written
// or removed.
func usersOf(have *State, ops []Op) map[any][]any {
	users := map[any][]any{}
	for _, op := range ops {
		if isRemoval(op) {
			users[Written(op)] = nil
		}
	}
	if len(users) == 0 {
		return users
	}
	for _, op := range ops {
		user := Written(op)
		for _, thing := range referredTo(have, user) {
			if previous, found := users[thing]; found {
				users[thing] = append(previous, user)
			}
		}
	}
	return users
}

func referredTo(s *State, user any) []any {
	var things []any
	switch user := user.(type) {
	case FrontendKey:
		frontend, found := s.Frontends[user]
		if !found {
			return nil
		}
		things = append(things, user.VIP, frontend.Endpoints, frontend.Ranges)
		for _, slot := range slotsOf(frontend) {
			things = append(things, slot)
		}
	case EndpointTableSlot:
		if table := s.EndpointTables[user]; table != nil {
			for _, id := range distinct(table[:]) {
				things = append(things, id)
			}
		}
	case NodeTableSlot:
		if table := s.NodeTables[user]; table != nil {
			for _, id := range nodesOf(*table) {
				things = append(things, id)
			}
		}
	}
	return things
}

func slotsOf(frontend Frontend) []NodeTableSlot {
	return distinct(append(frontend.Zones[:], frontend.Table))
}

// tableNodes caches the nodes of tables, because many slots may share one table.
type tableNodes map[*NodeTable][]NodeID

func (n tableNodes) of(op PutRows) []NodeID {
	if op.Whole == nil {
		return nodesOf(op.Rows)
	}
	ids, known := n[op.Whole]
	if !known {
		ids = nodesOf(op.Rows)
		n[op.Whole] = ids
	}
	return ids
}

func nodesOf(rows []Row) []NodeID {
	var found [MaxNodeID + 1]bool
	var ids []NodeID
	for i := range rows {
		for _, id := range [...]NodeID{rows[i].Primary, rows[i].Chain[0], rows[i].Chain[1], rows[i].Chain[2]} {
			if id != 0 && id <= MaxNodeID && !found[id] {
				found[id] = true
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func distinct[T comparable](values []T) []T {
	var none T
	var result []T
	found := map[T]bool{none: true}
	for _, value := range values {
		if !found[value] {
			found[value] = true
			result = append(result, value)
		}
	}
	return result
}
