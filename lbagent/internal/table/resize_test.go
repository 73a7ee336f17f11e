// SPDX-License-Identifier: Apache-2.0

package table

import (
	"hash/fnv"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Growing changes no hash's row, and shrinking back restores the table.
func TestResize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRendezvous()
		least := Size{Rows: forwarding.MinRows, Ranked: forwarding.MinRows}
		table := r.Advance(r.Advance(nil, least, genWeights(t), everyNode), least, genWeights(t), everyNode)
		times := 1 << rapid.IntRange(0, 5).Draw(t, "doublings")
		grown := Resize(table, times*forwarding.MinRows)
		for i, row := range *grown {
			if row != (*table)[i/times] {
				t.Fatalf("row %d of %d = %+v, previously %+v", i, len(*grown), row, (*table)[i/times])
			}
		}
		if back := Resize(grown, forwarding.MinRows); !back.Equal(table) {
			t.Fatal("shrinking back returns a different table")
		}
	})
}

func TestResizeJoinsOwners(t *testing.T) {
	table := forwarding.NewSizedNodeTable(2 * forwarding.MinRows)
	(*table)[6] = forwarding.Row{Primary: 1, Chain: [forwarding.ChainLength]forwarding.NodeID{5, 6}, History: 1}
	(*table)[7] = forwarding.Row{Primary: 2, Chain: [forwarding.ChainLength]forwarding.NodeID{7}, History: 1}
	want := forwarding.Row{Primary: 1, Chain: [forwarding.ChainLength]forwarding.NodeID{2, 5, 6}, History: 2}
	if got := (*Resize(table, forwarding.MinRows))[3]; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Each node's share deviates by at most seven percent, and another pod moves few rows even if it doubles the
// table. Shares below a row of scores are the hard case.
func TestSizedTables(t *testing.T) {
	for _, test := range []struct {
		nodes    int
		size, to Size
		// most is the allowed number of moved rows relative to the new pod's rows.
		most float64
	}{
		{3, Size{512, 512}, Size{512, 512}, 1.2},
		{10, Size{512, 512}, Size{512, 512}, 1.5},
		{16, Size{512, 512}, Size{1024, 512}, 2},
		{32, Size{1024, 512}, Size{2048, 512}, 2.5},
		{100, Size{4096, 512}, Size{4096, 512}, 6},
		{1000, Size{32768, 512}, Size{32768, 512}, 16},
		{128, Ordinary, Size{8192, 4096}, 6},
		{1000, Size{32768, 4096}, Size{32768, 4096}, 10},
		{2000, Size{65536, 4096}, Size{65536, 4096}, 16},
	} {
		r, w := NewRendezvous(), equalWeights(test.nodes, 1)
		owners := r.Primaries(w, test.size)
		for node, count := range countOwners(owners) {
			part, tolerance := test.size.Rows/test.nodes, test.size.tolerance().part
			if count < part*(100-tolerance)/100 || count > (part+1)*(100+tolerance)/100 && count > part+1 {
				t.Errorf("%d nodes: node %d owns %d of %d rows", test.nodes, node, count, test.size.Rows)
			}
		}
		moved, tries := 0, 5
		for i := range tries {
			next := r.Primaries(with(w, forwarding.NodeID(test.nodes+1+i), 1), test.to)
			for i, owner := range next {
				if owner != owners[i*test.size.Rows/test.to.Rows] {
					moved++
				}
			}
		}
		times := float64(moved) / float64(tries) / float64(test.to.Rows) * float64(test.nodes+1)
		t.Logf("%d nodes, %d rows: adding a node moves %.2f times the minimum", test.nodes, test.size.Rows, times)
		if times > test.most {
			t.Errorf("%d nodes: %.2f times the minimum, want at most %.2f", test.nodes, times, test.most)
		}
	}
}

// See TestTableIsDeterministic.
func TestSizedTablesStayTheSame(t *testing.T) {
	for size, want := range map[Size]uint64{{512, 512}: 0x9a93f06a545da053, {2048, 512}: 0x3886ac60548a481, {8192, 4096}: 0xf29c08b8dcded1b0} {
		hash := fnv.New64a()
		for _, node := range NewRendezvous().Primaries(weights{1: 3, 2: 1, 7: 2, 4095: 5, 9: 0, 11: 4, 12: 6, 13: 2}, size) {
			hash.Write([]byte{byte(node >> 8), byte(node)})
		}
		if got := hash.Sum64(); got != want {
			t.Errorf("%+v: checksum of the owners = %#x, want %#x", size, got, want)
		}
	}
}

func TestAdvanceGrows(t *testing.T) {
	r, w := NewRendezvous(), equalWeights(200, 1)
	old := r.Advance(nil, Ordinary, w, everyNode)
	double := Size{2 * forwarding.Rows, forwarding.Rows}
	next := r.Advance(old, double, w, everyNode)
	owners := r.Primaries(w, double)
	for i, row := range *next {
		before := (*old)[i/2]
		checkRow(t, i, row, everyNode)
		if row.Primary != owners[i] {
			t.Fatalf("row %d: primary %d, want %d", i, row.Primary, owners[i])
		}
		if row.Primary != before.Primary && (row.Chain[0] != before.Primary || row.History != before.History+1) {
			t.Fatalf("row %d changed from %+v to %+v", i, before, row)
		}
	}
	if again := r.Advance(next, double, w, everyNode); again != next {
		t.Error("a repeated resize returns a different table")
	}
	back := r.Advance(next, Ordinary, w, everyNode)
	for i, row := range *back {
		for _, previous := range (*next)[2*i : 2*i+2] {
			if previous.Primary != row.Primary && !slices.Contains(row.Chain[:row.History], previous.Primary) {
				t.Fatalf("row %d changed from %+v to %+v", i, previous, row)
			}
		}
	}
}
