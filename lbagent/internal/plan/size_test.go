// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

func TestSizeFor(t *testing.T) {
	for _, test := range []struct {
		name  string
		nodes int
		pods  uint32
		want  int
	}{
		{"no pod", 0, 0, 512}, {"one pod", 1, 1, 512},
		{"just enough", 16, 1, 512}, {"one additional pod", 17, 1, 1024},
		{"largest number for the ordinary size", 128, 1, forwarding.Rows},
		{"one pod above the ordinary size", 129, 1, 2 * forwarding.Rows},
		{"a thousand", 1000, 1, 8 * forwarding.Rows},
		{"typical number of pods", 5000, 30, forwarding.MaxRows},
		{"many pods on few nodes", 3, 1000, forwarding.Rows},
	} {
		f := model.Frontend{Weights: map[forwarding.NodeID]uint32{}}
		for id := range test.nodes {
			f.Weights[forwarding.NodeID(id+1)] = test.pods
		}
		if got, want := SizeFor(&f), (table.Size{Rows: test.want, Ranked: 512}); got != want {
			t.Errorf("%s: %+v, want %+v", test.name, got, want)
		}
	}
	f := model.Frontend{Weights: map[forwarding.NodeID]uint32{1: 1_000_000, 2: 3}, Backends: []model.Backend{{}}}
	if got := SizeFor(&f); got != table.Ordinary {
		t.Errorf("SizeFor with the weights of a VIPRoute = %+v", got)
	}
}

func TestTableSlots(t *testing.T) {
	const block, least = forwarding.Rows, forwarding.MinRows
	tables := map[forwarding.NodeTableSlot]*forwarding.NodeTable{}
	for _, slot := range []forwarding.NodeTableSlot{
		1, forwarding.NodeTableSlotAt(2*block+4*least, 4*least), forwarding.NodeTableSlotAt(4*block, 4*block), 9,
	} {
		tables[slot] = forwarding.NewNodeTable()
	}
	s := newTableSlots(19, tables)
	s.use(10)
	for i, test := range []struct {
		rows int
		want uint32
	}{
		{4 * least, 2 * block}, {block, 3 * block}, {4 * block, 12 * block}, {4 * least, 2*block + 8*least}, {block, 8 * block},
		{8 * least, 2*block + 16*least}, {4 * block, 16 * block}, {2 * block, 0}, {least, 2*block + 12*least}, {block, 11 * block},
		{block, 0}, {16 * least, 0}, {8 * least, 2*block + 24*least}, {8 * least, 0},
		{2 * least, 2*block + 14*least}, {2 * least, 0}, {least, 2*block + 13*least}, {least, 0},
	} {
		slot, found := s.allocate(test.rows)
		if found != (test.want != 0) || found && (slot.First() != test.want || slot.Rows() != test.rows || !s.retain(slot)) {
			t.Errorf("take %d: %d rows at %s (row %d), want row %d", i, test.rows, slot, slot.First(), test.want)
		}
	}
	if s.retain(20) || s.retain(forwarding.NodeTableSlotAt(16*forwarding.Rows, 8*forwarding.Rows)) {
		t.Error("a slot above the limit was retained")
	}
}

// spread returns a Service with one pod on each of pods nodes.
func spread(pods int) (model.Frontend, *model.Model) {
	f := frontend(1, "web")
	m := modelOf(f)
	m.Nodes = nil
	f.Weights = map[forwarding.NodeID]uint32{}
	for id := range forwarding.NodeID(pods) {
		f.Weights[id+1] = 1
	}
	for id := range forwarding.NodeID(200) {
		m.Nodes = append(m.Nodes, nodeWithID(id+1))
	}
	m.Frontends[0].Weights = f.Weights
	return f, m
}

// A table moves to a slot of another size as the number of pods changes. Its owners are retained, and the
// previous slot is freed.
func TestTablesChangeTheirSize(t *testing.T) {
	_, few := spread(100)
	_, many := spread(200)
	have := forwarding.NewState()
	p := NewPlanner(have)
	have, _ = advance(t, p, have, few, ample)
	first := have.Frontends[key(1)].Table
	before := have.NodeTables[first]
	have, problems := advance(t, p, have, many, ample)
	second := have.Frontends[key(1)].Table
	if first.Rows() != forwarding.Rows || second.Rows() != 2*forwarding.Rows || len(have.NodeTables) != 1 || len(problems) != 0 {
		t.Fatalf("slot changed from %s to %s, %d tables, problems %v", first, second, len(have.NodeTables), problems)
	}
	for i, row := range *have.NodeTables[second] {
		previous := (*before)[i/2].Primary
		if row.Primary != previous && (row.Chain[0] != previous || row.History == 0) {
			t.Fatalf("row %d = %+v, previously owned by node %d", i, row, previous)
		}
	}
	grown := have.NodeTables[second]
	// The same after a restart.
	have, _ = advance(t, NewPlanner(have), have, few, ample)
	third := have.Frontends[key(1)].Table
	if third.Rows() != forwarding.Rows || len(have.NodeTables) != 1 {
		t.Fatalf("slot changed from %s to %s, %d tables", second, third, len(have.NodeTables))
	}
	for i, row := range *have.NodeTables[third] {
		for _, previous := range (*grown)[2*i : 2*i+2] {
			if row.Primary != previous.Primary && !slices.Contains(row.Chain[:row.History], previous.Primary) {
				t.Fatalf("row %d = %+v, previously %+v", i, row, previous)
			}
		}
	}
}

func TestTablesStayWithoutRoom(t *testing.T) {
	limits := ample
	limits.NodeTables = 2
	_, few := spread(100)
	_, many := spread(200)
	p := NewPlanner(forwarding.NewState())
	have, _ := advance(t, p, forwarding.NewState(), few, limits)
	have, problems := advance(t, p, have, many, limits)
	got := have.Frontends[key(1)]
	if len(problems) != 0 || got.Table.Rows() != forwarding.Rows || len(primariesOf(have.NodeTables[got.Table])) != 200 {
		t.Errorf("frontend = %+v, problems = %v", got, problems)
	}
}
