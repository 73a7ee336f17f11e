// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func TestSucceed(t *testing.T) {
	type chain = [forwarding.ChainLength]forwarding.NodeID
	row := func(history uint8, primary forwarding.NodeID, previous ...forwarding.NodeID) forwarding.Row {
		r := forwarding.Row{Primary: primary, History: history}
		copy(r.Chain[:], previous)
		return r
	}
	cases := []struct {
		name    string
		old     forwarding.Row
		owner   forwarding.NodeID
		gone    forwarding.NodeID
		want    chain
		history uint8
	}{
		{"new row", row(0, 0), 1, 0, chain{}, 0},
		{"at rest", row(2, 1, 2, 3, 4), 1, 0, chain{2, 3, 4}, 2},
		{"different owner", row(3, 1, 2, 3, 4), 5, 0, chain{1, 2, 3}, 3},
		{"first owner removed, followed by ranks", row(0, 1, 2, 3, 4), 5, 0, chain{1, 2, 3}, 1},
		{"second owner removed, followed by ranks", row(1, 1, 2, 3, 4), 5, 0, chain{1, 2, 3}, 2},
		{"returned to the previous owner", row(3, 1, 2, 3, 4), 2, 0, chain{1, 3, 4}, 3},
		{"moved to the next node by rank", row(0, 1, 2, 3, 4), 2, 0, chain{1, 3, 4}, 1},
		{"returned to the oldest owner", row(3, 1, 2, 3, 4), 4, 0, chain{1, 2, 3}, 3},
		{"owner removed", row(2, 1, 2, 3, 4), 5, 1, chain{2, 3, 4}, 2},
		{"previous owner removed", row(3, 1, 2, 3, 4), 1, 3, chain{2, 4}, 2},
		{"node by rank removed", row(1, 1, 2, 3, 4), 1, 3, chain{2, 4}, 1},
		{"oldest node restored after a removal", row(3, 1, 2, 3, 4), 5, 2, chain{1, 3, 4}, 3},
		{"duplicate in the maps", row(3, 1, 2, 2, 1), 5, 0, chain{1, 2}, 2},
		{"no node to own the row", row(1, 1, 2), 0, 0, chain{1, 2}, 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := succeed(c.old, c.owner, func(node forwarding.NodeID) bool { return node != c.gone })
			if want := (forwarding.Row{Primary: c.owner, Chain: c.want, History: c.history}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// checkRow verifies invariants of a row.
func checkRow(t rapid.TB, number int, row forwarding.Row, exists func(forwarding.NodeID) bool) {
	seen := []forwarding.NodeID{row.Primary}
	ended := false
	for _, node := range row.Chain {
		if node == 0 {
			ended = true
			continue
		}
		if ended || slices.Contains(seen, node) || !exists(node) {
			t.Fatalf("row %d = %+v has a gap, a duplicate or a missing node", number, row)
		}
		seen = append(seen, node)
	}
	if history := int(row.History); history > 0 && (history > forwarding.ChainLength || row.Chain[history-1] == 0) {
		t.Fatalf("row %d = %+v: the history is longer than the chain", number, row)
	}
}

func TestAdvance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRendezvous()
		var table *forwarding.NodeTable
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			w := genWeights(t)
			gone := forwarding.NodeID(rapid.IntRange(0, 50).Draw(t, "gone"))
			exists := func(node forwarding.NodeID) bool { return w[node] > 0 || node != gone }
			old := table
			copied := forwarding.NewNodeTable()
			if old != nil {
				copied = old.Clone()
			}
			table = r.Advance(old, Ordinary, w, exists)
			if old != nil && !old.Equal(copied) {
				t.Fatal("Advance modified the old table")
			}
			checkStep(t, r, *copied, *table, w, exists)
			if again := r.Advance(table, Ordinary, w, exists); again != table {
				t.Fatal("an unchanged table was copied or modified")
			}
		}
	})
}

func checkStep(
	t *rapid.T, r *Rendezvous, old, next forwarding.NodeTable, w weights, exists func(forwarding.NodeID) bool,
) {
	owners := r.Primaries(w, Ordinary)
	for i := range next {
		checkRow(t, i, next[i], exists)
		if next[i].Primary != owners[i] {
			t.Fatalf("row %d: primary %d, want %d", i, next[i].Primary, owners[i])
		}
		chain := next[i].Chain[:]
		if old[i].Primary == owners[i] {
			if next[i] != old[i] && !slices.ContainsFunc(old[i].Chain[:], func(n forwarding.NodeID) bool { return n != 0 && !exists(n) }) {
				t.Fatalf("row %d changed from %+v to %+v, want it unchanged", i, old[i], next[i])
			}
			continue
		}
		if old[i].Primary != 0 && exists(old[i].Primary) && chain[0] != old[i].Primary {
			t.Fatalf("row %d: previous owner %d is not the first of %v", i, old[i].Primary, chain)
		}
		if old[i].Primary != 0 && exists(old[i].Primary) && next[i].History == 0 {
			t.Fatalf("row %d: the move from %+v is missing in the history of %+v", i, old[i], next[i])
		}
		// A slot of the chain is free only if no weighted node is left.
		for node, weight := range w {
			if weight > 0 && chain[forwarding.ChainLength-1] == 0 && node != owners[i] && !slices.Contains(chain, node) {
				t.Fatalf("row %d = %+v has room, but does not contain node %d", i, next[i], node)
			}
		}
	}
}

// ranks computes the order of succession by definition: without the owner, the next node in rank owns the row.
func ranks(r *Rendezvous, w weights, count int) [][]forwarding.NodeID {
	order := make([][]forwarding.NodeID, forwarding.Rows)
	for row := range order {
		left := weights{}
		for node, weight := range w {
			left[node] = weight
		}
		for range count {
			var owner forwarding.NodeID
			var best distance
			for node, weight := range left {
				d := distance{score: uint64(r.scoresOf(node, forwarding.Rows)[row]), weight: uint64(weight)}
				if weight > 0 && (owner == 0 || d.less(best) || !best.less(d) && node < owner) {
					owner, best = node, d
				}
			}
			if owner != 0 {
				order[row] = append(order[row], owner)
				delete(left, owner)
			}
		}
	}
	return order
}

func TestNewChainsFollowRanks(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 4, 5, 12} {
		r, w := NewRendezvous(), equalWeights(nodes, 2)
		w[1] = 5
		order := ranks(r, w, 1+forwarding.ChainLength)
		for i, row := range *r.Advance(nil, Ordinary, w, everyNode) {
			got := slices.DeleteFunc(row.Chain[:], func(node forwarding.NodeID) bool { return node == 0 })
			want := slices.DeleteFunc(order[i], func(node forwarding.NodeID) bool { return node == row.Primary })
			if want = want[:min(len(want), forwarding.ChainLength)]; !slices.Equal(got, want) {
				t.Fatalf("%d nodes, row %d of node %d: %v, want %v", nodes, i, row.Primary, got, want)
			}
		}
	}
}
