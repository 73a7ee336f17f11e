// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func TestRowsFor(t *testing.T) {
	for _, test := range []struct {
		name  string
		nodes int
		pods  uint32
		want  int
	}{
		{"no pod", 0, 0, forwarding.Rows}, {"one pod", 1, 1, forwarding.Rows}, {"just enough", 128, 1, forwarding.Rows},
		{"one more", 129, 1, 2 * forwarding.Rows}, {"a thousand", 1000, 1, 8 * forwarding.Rows},
		{"as many as a cluster has", 5000, 30, forwarding.MostRows}, {"many on few nodes", 3, 1000, forwarding.Rows},
	} {
		f := model.Frontend{Weights: map[forwarding.NodeID]uint32{}}
		for id := range test.nodes {
			f.Weights[forwarding.NodeID(id+1)] = test.pods
		}
		if got := RowsFor(&f); got != test.want {
			t.Errorf("%s: %d rows, want %d", test.name, got, test.want)
		}
	}
	f := model.Frontend{Weights: map[forwarding.NodeID]uint32{1: 1_000_000, 2: 3}, Backends: []model.Backend{{}}}
	if got := RowsFor(&f); got != forwarding.Rows {
		t.Errorf("with the weights of a VIPRoute: %d rows", got)
	}
}

func TestTableSlots(t *testing.T) {
	table := forwarding.NewNodeTable()
	large := forwarding.NodeTableSlotAt(4*forwarding.Rows, 4*forwarding.Rows)
	s := newTableSlots(19, map[forwarding.NodeTableSlot]*forwarding.NodeTable{1: table, large: table, 9: table})
	s.use(10)
	var got []int
	for _, blocks := range []int{1, 4, 1, 1, 4, 2, 1, 1, 1} {
		slot, found := s.take(blocks)
		if !found {
			got = append(got, 0)
			continue
		}
		if slot.Blocks() != blocks || !s.keep(slot) {
			t.Errorf("%d blocks: %s", blocks, slot)
		}
		got = append(got, slot.Block())
	}
	if want := []int{2, 12, 3, 8, 16, 0, 11, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("tables begin at blocks %v, want %v", got, want)
	}
	if s.keep(20) || s.keep(forwarding.NodeTableSlotAt(16*forwarding.Rows, 8*forwarding.Rows)) {
		t.Error("a slot beyond the limit is kept")
	}
}

// spread is a Service with so many pods, of which each is on a node of its own.
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

// The node table of a Service gets a slot of another size as its pods become more or fewer. Who had a
// row stays known, and the slot that it had becomes free.
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
		t.Fatalf("from slot %s to %s, %d tables, problems %v", first, second, len(have.NodeTables), problems)
	}
	for i, row := range *have.NodeTables[second] {
		former := (*before)[i/2].Primary
		if row.Primary != former && (row.Chain[0] != former || row.History == 0) {
			t.Fatalf("row %d is %+v, was of node %d", i, row, former)
		}
	}
	grown := have.NodeTables[second]
	// Also by a planner that has just started.
	have, _ = advance(t, NewPlanner(have), have, few, ample)
	third := have.Frontends[key(1)].Table
	if third.Rows() != forwarding.Rows || len(have.NodeTables) != 1 {
		t.Fatalf("from slot %s to %s, %d tables", second, third, len(have.NodeTables))
	}
	for i, row := range *have.NodeTables[third] {
		for _, former := range (*grown)[2*i : 2*i+2] {
			if row.Primary != former.Primary && !slices.Contains(row.Chain[:row.History], former.Primary) {
				t.Fatalf("row %d is %+v, was %+v", i, row, former)
			}
		}
	}
}

// Without room for a larger table a Service goes on with the one that it has.
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
		t.Errorf("%+v, problems %v", got, problems)
	}
}
