// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const selfID = NodeID(1)

func addressNumber(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(n)})
}

// genState draws a state with complete frontends.
func genState(t *rapid.T) *State {
	s := NewState()
	s.Self = Self{ID: selfID, IPv4: addressNumber(rapid.IntRange(1, 2).Draw(t, "self"))}
	nodes := []NodeID{selfID}
	for id := range NodeID(5) {
		if rapid.Bool().Draw(t, "node") {
			s.Nodes[id+2] = Node{IPv4: addressNumber(10 + rapid.IntRange(0, 1).Draw(t, "address"))}
			nodes = append(nodes, id+2)
		}
	}
	var endpoints []EndpointID
	for id := range EndpointID(6) {
		if rapid.Bool().Draw(t, "endpoint") {
			s.Endpoints[id+1] = Endpoint{Address: addressNumber(20), Port: rapid.Uint16Range(1, 2).Draw(t, "port")}
			endpoints = append(endpoints, id+1)
		}
	}
	tables, endpointTables := []NodeTableSlot{0}, []EndpointTableSlot{0}
	for slot := range NodeTableSlot(3) {
		if rapid.Bool().Draw(t, "table") {
			s.NodeTables[slot+1] = genTable(t, nodes)
			tables = append(tables, slot+1)
		}
	}
	for slot := range EndpointTableSlot(3) {
		if len(endpoints) > 0 && rapid.Bool().Draw(t, "endpoint table") {
			s.EndpointTables[slot+1] = genEndpointTable(t, endpoints)
			endpointTables = append(endpointTables, slot+1)
		}
	}
	sets := []SourceSet{0, NoSources}
	for set := range SourceSet(3) {
		for range rapid.IntRange(0, 2).Draw(t, "ranges") {
			prefix := netip.PrefixFrom(addressNumber(0), rapid.IntRange(0, 24).Draw(t, "bits")).Masked()
			s.SourceRanges[SourceRange{Set: set + 1, Prefix: prefix}] = struct{}{}
		}
		sets = append(sets, set+1)
	}
	for n := range 3 {
		if !rapid.Bool().Draw(t, "VIP") {
			continue
		}
		s.VIPs[addressNumber(30+n)] = struct{}{}
		for range rapid.IntRange(0, 3).Draw(t, "frontends") {
			key := FrontendKey{VIP: addressNumber(30 + n), Port: rapid.Uint16Range(1, 3).Draw(t, "port"), Protocol: ProtocolTCP}
			s.Frontends[key] = Frontend{
				ID:        FrontendID(rapid.IntRange(1, 9).Draw(t, "id")),
				Local:     rapid.Bool().Draw(t, "local"),
				Table:     rapid.SampledFrom(tables).Draw(t, "slot"),
				Zones:     [Zones]NodeTableSlot{2: rapid.SampledFrom(tables).Draw(t, "slot of a zone")},
				Endpoints: rapid.SampledFrom(endpointTables).Draw(t, "endpoint slot"),
				Ranges:    rapid.SampledFrom(sets).Draw(t, "source set"),
			}
		}
	}
	return s
}

func genTable(t *rapid.T, nodes []NodeID) *NodeTable {
	pick := rapid.SliceOfN(rapid.SampledFrom(nodes), 1, 4).Draw(t, "owners")
	table := *NewNodeTable()
	for i := range table {
		table[i].Primary = pick[i%len(pick)]
	}
	table[rapid.IntRange(0, Rows-1).Draw(t, "row")].Chain[0] = rapid.SampledFrom(nodes).Draw(t, "former")
	return &table
}

func genEndpointTable(t *rapid.T, endpoints []EndpointID) *EndpointTable {
	pick := rapid.SliceOfN(rapid.SampledFrom(endpoints), 1, 4).Draw(t, "endpoints")
	table := &EndpointTable{}
	for i := range table {
		table[i] = pick[i%len(pick)]
	}
	return table
}

// incomplete returns the missing dependencies of frontends, or nil.
func incomplete(s *State) error {
	for key, frontend := range s.Frontends {
		if _, found := s.VIPs[key.VIP]; !found {
			return fmt.Errorf("%s is without its VIP", key)
		}
		for _, slot := range append(frontend.Zones[:], frontend.Table) {
			if err := incompleteTable(s, slot); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
		if frontend.Endpoints == 0 {
			continue
		}
		table := s.EndpointTables[frontend.Endpoints]
		if table == nil {
			return fmt.Errorf("%s: endpoint table %d is missing", key, frontend.Endpoints)
		}
		for _, id := range distinct(table[:]) {
			if _, found := s.Endpoints[id]; !found {
				return fmt.Errorf("%s: endpoint %d is missing", key, id)
			}
		}
	}
	return nil
}

func incompleteTable(s *State, slot NodeTableSlot) error {
	if slot == 0 {
		return nil
	}
	table := s.NodeTables[slot]
	if table == nil {
		return fmt.Errorf("table %d is missing", slot)
	}
	for _, node := range nodesOf(*table) {
		if _, found := s.Nodes[node]; !found && node != s.Self.ID {
			return fmt.Errorf("table %d: node %d is missing", slot, node)
		}
	}
	for i, row := range *table {
		if row.Primary == 0 {
			return fmt.Errorf("table %d, row %d has no primary", slot, i)
		}
	}
	return nil
}

func TestDiffResultEqualsWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := genState(t), genState(t)
		before := have.Clone()
		if got := Apply(have, Diff(have, want)); !reflect.DeepEqual(got, want) {
			t.Fatalf("Apply(Diff) =\n%+v\nwant\n%+v", got, want)
		}
		if !reflect.DeepEqual(have, before) {
			t.Fatal("Apply modified its input state")
		}
	})
}

func TestEveryPrefixOfOpsIsComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := genState(t), genState(t)
		state := have
		for i, op := range Diff(have, want) {
			state = Apply(state, []Op{op})
			if err := incomplete(state); err != nil {
				t.Fatalf("after operation %d, %T: %v", i, op, err)
			}
		}
	})
}

func TestFill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state, want := genState(t), genState(t)
		for i, op := range Diff(state, want) {
			next := Apply(state, []Op{op})
			if before, after := *state.Usage(), *next.Usage(); before != after && !ChangesUsage(op) {
				t.Fatalf("operation %d, %T: ChangesUsage is false, but usage changed from %+v to %+v", i, op, before, after)
			}
			state = next
		}
		fill := *state.Usage()
		lengths := Usage{
			Nodes: len(want.Nodes), VIPs: len(want.VIPs), Frontends: len(want.Frontends), Endpoints: len(want.Endpoints),
			EndpointTables: len(want.EndpointTables), NodeTables: len(want.NodeTables), SourceRangesIPv4: len(want.SourceRanges),
		}
		if fill != lengths {
			t.Fatalf("usage = %+v, want %+v", fill, lengths)
		}
	})
}

func TestDiffResumes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := genState(t), genState(t)
		ops := Diff(have, want)
		done := rapid.IntRange(0, len(ops)).Draw(t, "done")
		rest := Diff(Apply(have, ops[:done]), want)
		if !reflect.DeepEqual(rest, append([]Op(nil), ops[done:]...)) {
			t.Fatalf("after %d of %d operations, Diff returned %d", done, len(ops), len(rest))
		}
	})
}

func TestDiffOfEqualStatesIsEmpty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have := genState(t)
		same := have.Clone()
		for slot, table := range same.NodeTables {
			same.NodeTables[slot] = table.Clone()
		}
		for slot, table := range same.EndpointTables {
			copied := *table
			same.EndpointTables[slot] = &copied
		}
		if ops := Diff(have, same); len(ops) != 0 {
			t.Fatalf("%d operations between equal states, first: %#v", len(ops), ops[0])
		}
	})
}

func TestSplitPartsAtTheFirstRemoval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := genState(t), genState(t)
		ops := Diff(have, want)
		additions, removals := Split(ops)
		if joined := slices.Concat(additions, removals); !reflect.DeepEqual(joined, ops) && len(ops) > 0 {
			t.Fatal("additions and removals do not concatenate to all operations")
		}
		state := Apply(have, additions)
		for key := range have.Frontends {
			if _, found := state.Frontends[key]; !found {
				t.Fatalf("the additions remove %s", key)
			}
		}
		for key, frontend := range want.Frontends {
			before, none := have.Frontends[key], [Zones]NodeTableSlot{}
			stays := before.ID == frontend.ID && before.Table == frontend.Table
			if after := state.Frontends[key]; stays && frontend.Zones == none && after.Zones != before.Zones {
				t.Fatalf("the additions replace the zones %v of %s by %v", before.Zones, key, after.Zones)
			}
		}
		for address := range have.VIPs {
			if _, found := state.VIPs[address]; !found {
				t.Fatalf("the additions remove %s", address)
			}
		}
		if len(Diff(want, Apply(state, removals))) != 0 {
			t.Fatal("additions followed by removals do not produce the wanted state")
		}
	})
}

func TestOnlyChangedRowsAreWritten(t *testing.T) {
	have, want := NewState(), NewState()
	old := NewNodeTable()
	for i := range *old {
		(*old)[i].Primary = 1
	}
	next := *old.Clone()
	next[0].Primary, next[77].Chain[0], next[Rows-1].Primary = 2, 3, 2
	have.NodeTables[5], want.NodeTables[5], want.NodeTables[6] = old, &next, old

	ops := Diff(have, want)
	if len(ops) != 2 {
		t.Fatalf("%d operations, want 2", len(ops))
	}
	changed := PutRows{
		Slot: 5, Changed: []uint32{0, 77, Rows - 1},
		Rows: []Row{{Primary: 2}, {Primary: 1, Chain: [ChainLength]NodeID{3}}, {Primary: 2}},
	}
	if !reflect.DeepEqual(ops[0], changed) {
		t.Errorf("changed table = %+v, want %+v", ops[0], changed)
	}
	// The content of an unused slot is unknown, so that all rows are written.
	if rows := ops[1].(PutRows); rows.Slot != 6 || len(rows.Changed) != Rows || !slices.Equal(rows.Rows, *old) || rows.Whole != old {
		t.Errorf("new table: slot %d with %d rows, want slot 6 with all rows", rows.Slot, len(rows.Changed))
	}
}

func TestOrderOfKinds(t *testing.T) {
	full := NewState()
	full.Self = Self{ID: selfID}
	full.Nodes[2] = Node{IPv4: addressNumber(1)}
	full.Endpoints[1] = Endpoint{Address: addressNumber(2), Port: 80}
	full.EndpointTables[1] = &EndpointTable{1}
	full.NodeTables[1] = &NodeTable{0: {Primary: 2}, Rows - 1: {}}
	full.VIPs[addressNumber(3)] = struct{}{}
	full.SourceRanges[SourceRange{Set: 1, Prefix: netip.PrefixFrom(addressNumber(4), 32)}] = struct{}{}
	full.Frontends[FrontendKey{VIP: addressNumber(3), Port: 80, Protocol: ProtocolTCP}] = Frontend{ID: 1, Table: 1, Endpoints: 1, Ranges: 1}

	kinds := func(ops []Op) (names []string) {
		for _, op := range ops {
			names = append(names, fmt.Sprintf("%T", op))
		}
		return names
	}
	added := []string{
		"forwarding.SetSelf", "forwarding.PutNode", "forwarding.PutVIP", "forwarding.PutEndpoint",
		"forwarding.PutEndpointTable", "forwarding.PutRows", "forwarding.PutSourceRange", "forwarding.PutFrontend",
	}
	if got := kinds(Diff(NewState(), full)); !slices.Equal(got, added) {
		t.Errorf("additions = %v, want %v", got, added)
	}
	removed := []string{
		"forwarding.SetSelf", "forwarding.DeleteFrontend", "forwarding.DeleteVIP", "forwarding.DeleteSourceRange", "forwarding.ClearTable",
		"forwarding.ClearEndpointTable", "forwarding.DeleteEndpoint", "forwarding.DeleteNode",
	}
	if got := kinds(Diff(full, NewState())); !slices.Equal(got, removed) {
		t.Errorf("removals = %v, want %v", got, removed)
	}
}

// All other fields of a frontend that leaves its zones change immediately.
func TestZonesAreRemovedLast(t *testing.T) {
	key := FrontendKey{VIP: addressNumber(3), Port: 80, Protocol: ProtocolTCP}
	have, want := NewState(), NewState()
	have.NodeTables[1], have.NodeTables[2] = NewNodeTable(), NewNodeTable()
	have.Frontends[key] = Frontend{ID: 1, Table: 1, Zones: [Zones]NodeTableSlot{0: 1, 1: 2}}
	want.NodeTables[1] = have.NodeTables[1]
	want.Frontends[key] = Frontend{ID: 1, Table: 1}
	left := []Op{RemoveZones{Key: key}, ClearTable{Slot: 2}}
	if ops := Diff(have, want); !reflect.DeepEqual(ops, left) {
		t.Errorf("operations %+v, want %+v", ops, left)
	}
	want.Frontends[key] = Frontend{ID: 1, Table: 1, Affinity: 5}
	changed := PutFrontend{Key: key, Frontend: Frontend{ID: 1, Table: 1, Affinity: 5, Zones: have.Frontends[key].Zones}}
	if ops := Diff(have, want); !reflect.DeepEqual(ops, append([]Op{changed}, left...)) {
		t.Errorf("operations %+v, want %+v, then %+v", ops, changed, left)
	}
	// With another table, or without one, zones are removed immediately.
	want.Frontends[key] = Frontend{ID: 1}
	delete(want.NodeTables, 1)
	if ops := Diff(have, want); !reflect.DeepEqual(ops[0], PutFrontend{Key: key, Frontend: Frontend{ID: 1}}) {
		t.Errorf("first operation = %+v", ops[0])
	}
}

func TestKeysAreOrdered(t *testing.T) {
	sorted := []FrontendKey{
		{VIP: netip.MustParseAddr("203.0.113.1"), Port: 80, Protocol: ProtocolTCP},
		{VIP: netip.MustParseAddr("203.0.113.1"), Port: 80, Protocol: ProtocolUDP},
		{VIP: netip.MustParseAddr("203.0.113.1"), Port: 443, Protocol: ProtocolTCP},
		{VIP: netip.MustParseAddr("203.0.113.2"), Port: 53, Protocol: ProtocolUDP},
		{VIP: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: 132},
	}
	set := map[FrontendKey]bool{}
	for _, key := range sorted {
		set[key] = true
	}
	if got := slices.SortedFunc(maps.Keys(set), FrontendKey.Compare); !slices.Equal(got, sorted) {
		t.Errorf("order = %v, want %v", got, sorted)
	}
	for i, want := range []string{"203.0.113.1:80/TCP", "203.0.113.1:80/UDP", "203.0.113.1:443/TCP", "203.0.113.2:53/UDP", "[2001:db8::1]:53/SCTP"} {
		if got := sorted[i].String(); got != want {
			t.Errorf("key formatted as %s, want %s", got, want)
		}
	}
}
