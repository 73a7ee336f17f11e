// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// A table that grows has the same rows for every hash, and none is lost on the way back.
func TestResize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRendezvous()
		table := r.Advance(r.Advance(nil, forwarding.LeastRows, genWeights(t), everyNode), forwarding.LeastRows, genWeights(t), everyNode)
		times := 1 << rapid.IntRange(0, 5).Draw(t, "doublings")
		grown := Resize(table, times*forwarding.LeastRows)
		for i, row := range *grown {
			if row != (*table)[i/times] {
				t.Fatalf("row %d of %d is %+v, was %+v", i, len(*grown), row, (*table)[i/times])
			}
		}
		if back := Resize(grown, forwarding.LeastRows); !back.Equal(table) {
			t.Fatal("it is another table on the way back")
		}
	})
}

// Where rows become one, it has the owners of all as far as there is room.
func TestResizeJoinsOwners(t *testing.T) {
	table := forwarding.NewNodeTableOf(2 * forwarding.LeastRows)
	(*table)[6] = forwarding.Row{Primary: 1, Chain: [forwarding.ChainLength]forwarding.NodeID{5, 6}, History: 1}
	(*table)[7] = forwarding.Row{Primary: 2, Chain: [forwarding.ChainLength]forwarding.NodeID{7}, History: 1}
	want := forwarding.Row{Primary: 1, Chain: [forwarding.ChainLength]forwarding.NodeID{2, 5, 6}, History: 2}
	if got := (*Resize(table, forwarding.LeastRows))[3]; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Where one pod more makes a table larger, few rows move; and each node has exactly its part.
func TestLargeTables(t *testing.T) {
	for _, test := range []struct {
		nodes, rows int
		// most is which part of the rows may have another owner than in a table of ordinary size, and
		// after one node has one pod more, in percent.
		most, mostAfter float64
	}{{200, 8192, 4, 4}, {1000, 32768, 3, 2}, {2000, 65536, 3, 1.5}} {
		r, w := NewRendezvous(), equalWeights(test.nodes, 1)
		coarse, fine := r.Primaries(w, forwarding.Rows), r.Primaries(w, test.rows)
		for node, count := range countOwners(fine) {
			if part := test.rows / test.nodes; count != part && count != part+1 {
				t.Errorf("%d nodes: node %d has %d of %d rows", test.nodes, node, count, test.rows)
			}
		}
		moved := 0
		for i, owner := range fine {
			if owner != coarse[i*forwarding.Rows/test.rows] {
				moved++
			}
		}
		after := 0
		for i, owner := range r.Primaries(with(w, 7, 2), test.rows) {
			if owner != fine[i] {
				after++
			}
		}
		part := func(rows int) float64 { return 100 * float64(rows) / float64(test.rows) }
		t.Logf("%d nodes, %d rows: %.1f %% have another owner than of 4,096, %.2f %% after one pod more", test.nodes, test.rows, part(moved), part(after))
		if part(moved) > test.most || part(after) > test.mostAfter {
			t.Errorf("%d nodes: want %.1f %% and %.1f %% at most", test.nodes, test.most, test.mostAfter)
		}
	}
}

// A large table goes on from one of ordinary size: who had a row before is its newest former owner.
func TestAdvanceGrows(t *testing.T) {
	r, w := NewRendezvous(), equalWeights(200, 1)
	old := r.Advance(nil, forwarding.Rows, w, everyNode)
	next := r.Advance(old, 2*forwarding.Rows, w, everyNode)
	owners := r.Primaries(w, 2*forwarding.Rows)
	for i, row := range *next {
		before := (*old)[i/2]
		checkRow(t, i, row, everyNode)
		if row.Primary != owners[i] {
			t.Fatalf("row %d has the primary %d, want %d", i, row.Primary, owners[i])
		}
		if row.Primary != before.Primary && (row.Chain[0] != before.Primary || row.History != before.History+1) {
			t.Fatalf("row %d was %+v and is %+v", i, before, row)
		}
	}
	if again := r.Advance(next, 2*forwarding.Rows, w, everyNode); again != next {
		t.Error("it is another one once more")
	}
	back := r.Advance(next, forwarding.Rows, w, everyNode)
	for i, row := range *back {
		for _, former := range (*next)[2*i : 2*i+2] {
			if former.Primary != row.Primary && !slices.Contains(row.Chain[:row.History], former.Primary) {
				t.Fatalf("row %d was %+v and is %+v", i, former, row)
			}
		}
	}
}
