// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func TestMergeRow(t *testing.T) {
	row := func(history uint8, primary forwarding.NodeID, previous ...forwarding.NodeID) forwarding.Row {
		r := forwarding.Row{Primary: primary, History: history}
		copy(r.Chain[:], previous)
		return r
	}
	for _, c := range []struct {
		name              string
		base, other, want forwarding.Row
		fits              bool
	}{
		{"equal", row(1, 1, 2, 3), row(1, 1, 2, 3), row(1, 1, 2, 3), true},
		{"different owner", row(0, 1), row(0, 2), row(0, 1), false},
		{"ranks are not history", row(1, 1, 2, 3), row(0, 1, 4, 5), row(1, 1, 2, 3), true},
		{"already in the chain", row(2, 1, 2, 3), row(1, 1, 3, 4), row(2, 1, 2, 3), true},
		{"newest owner from the other table", row(1, 1, 2, 5), row(1, 1, 3, 6), row(2, 1, 3, 2, 5), true},
		{"node previously by rank", row(1, 1, 2, 3), row(1, 1, 3), row(2, 1, 3, 2), true},
		{"ranks are replaced", row(0, 1, 5, 6, 7), row(2, 1, 3, 4), row(2, 1, 3, 4, 5), true},
		{"just enough capacity", row(2, 1, 2, 3), row(2, 1, 4, 2), row(3, 1, 4, 2, 3), true},
		{"no room", row(2, 1, 2, 3), row(2, 1, 4, 5), row(2, 1, 2, 3), false},
	} {
		base, other := &forwarding.NodeTable{7: c.base}, &forwarding.NodeTable{7: c.other}
		got, fits := Merge(base, other)
		if fits != c.fits {
			t.Errorf("%s: fits = %t", c.name, fits)
		}
		if fits && ((*got)[7] != c.want || (got == base) != (c.want == c.base)) {
			t.Errorf("%s: %+v, want %+v; base itself: %t", c.name, (*got)[7], c.want, got == base)
		}
	}
}

// United tables of equal weights satisfy the invariants of Advance and retain all former owners.
func TestMergedTablesHold(t *testing.T) {
	nodes := []forwarding.NodeID{1, 2, 3, 4}
	all := func(forwarding.NodeID) bool { return true }
	united := 0
	rapid.Check(t, func(t *rapid.T) {
		r := NewRendezvous()
		last := map[forwarding.NodeID]uint32{1: 1, 2: 1}
		tables := make([]*forwarding.NodeTable, 2)
		for i := range tables {
			for range rapid.IntRange(0, 2).Draw(t, "steps") {
				node := rapid.SampledFrom(nodes).Draw(t, "node")
				tables[i] = r.Advance(tables[i], Ordinary, map[forwarding.NodeID]uint32{node: 1, 1: 1}, all)
			}
			tables[i] = r.Advance(tables[i], Ordinary, last, all)
		}
		got, fits := Merge(tables[0], tables[1])
		if !fits {
			return
		}
		united++
		for i, row := range *got {
			known := row.Chain[:row.History]
			for _, table := range tables {
				for _, node := range (*table)[i].Chain[:(*table)[i].History] {
					if !slices.Contains(known, node) {
						t.Fatalf("row %d: %+v of %+v and %+v", i, row, (*tables[0])[i], (*tables[1])[i])
					}
				}
			}
		}
		if next := r.Advance(got, Ordinary, last, all); next != got {
			t.Fatal("equal weights changed the table")
		}
		if again, fits := Merge(got, tables[1]); !fits || again != got {
			t.Fatal("a repeated Merge returns a different table")
		}
	})
	if united == 0 {
		t.Error("no pair of tables was merged")
	}
}

func TestIsFull(t *testing.T) {
	table := &forwarding.NodeTable{9: {Primary: 1, Chain: [forwarding.ChainLength]forwarding.NodeID{2, 3, 4}, History: 2}}
	if IsFull(table) {
		t.Error("IsFull counts ranks as history")
	}
	if (*table)[9].History++; !IsFull(table) {
		t.Error("IsFull ignores a full history")
	}
}
