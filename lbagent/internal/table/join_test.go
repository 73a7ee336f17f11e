// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func TestJoinRow(t *testing.T) {
	row := func(history uint8, primary forwarding.NodeID, previous ...forwarding.NodeID) forwarding.Row {
		r := forwarding.Row{Primary: primary, History: history}
		copy(r.Chain[:], previous)
		return r
	}
	cases := []struct {
		name   string
		base   forwarding.Row
		owners []forwarding.NodeID
		want   forwarding.Row
	}{
		{"nobody", row(1, 1, 2, 3), nil, row(1, 1, 2, 3)},
		{"same owner", row(1, 1, 2, 3), []forwarding.NodeID{1}, row(1, 1, 2, 3)},
		{"different owner", row(0, 1), []forwarding.NodeID{2}, row(1, 1, 2)},
		{"before history and ranks", row(1, 1, 2, 3), []forwarding.NodeID{4}, row(2, 1, 4, 2, 3)},
		{"oldest node dropped", row(3, 1, 2, 3, 4), []forwarding.NodeID{5}, row(3, 1, 5, 2, 3)},
		{"node previously by rank", row(0, 1, 2, 3), []forwarding.NodeID{3}, row(1, 1, 3, 2)},
		{"already in the chain", row(2, 1, 2, 3), []forwarding.NodeID{3, 2}, row(2, 1, 2, 3)},
		{"twice", row(0, 1), []forwarding.NodeID{2, 2, 3}, row(2, 1, 2, 3)},
		{"chain full", row(1, 1, 6), []forwarding.NodeID{2, 3, 4, 5}, row(3, 1, 2, 3, 4)},
		{"row without an owner", row(0, 1), []forwarding.NodeID{0}, row(0, 1)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			base := &forwarding.NodeTable{7: c.base}
			var others []*forwarding.NodeTable
			for _, owner := range c.owners {
				others = append(others, &forwarding.NodeTable{7: {Primary: owner}})
			}
			got := Join(base, others...)
			if (*got)[7] != c.want {
				t.Errorf("%+v, want %+v", (*got)[7], c.want)
			}
			if (got == base) != (c.want == c.base) {
				t.Errorf("returned base itself = %t", got == base)
			}
			if again := Join(got, others...); again != got {
				t.Errorf("a repeated Join returns a different table: %+v", (*again)[7])
			}
		})
	}
}

func TestJoinedTablesHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRendezvous()
		var tables []*forwarding.NodeTable
		for range rapid.IntRange(1, 4).Draw(t, "tables") {
			table := r.Advance(nil, Ordinary, genWeights(t), everyNode)
			if rapid.Bool().Draw(t, "twice") {
				table = r.Advance(table, Ordinary, genWeights(t), everyNode)
			}
			tables = append(tables, table)
		}
		joined := Join(tables[0], tables[1:]...)
		for i, row := range *joined {
			checkRow(t, i, row, everyNode)
			if row.Primary != (*tables[0])[i].Primary {
				t.Fatalf("row %d: primary changed to %d from %d", i, row.Primary, (*tables[0])[i].Primary)
			}
		}
		w := genWeights(t)
		checkStep(t, r, *joined, *r.Advance(joined, Ordinary, w, everyNode), w, everyNode)
	})
}
