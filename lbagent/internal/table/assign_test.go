// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// TestAssign compares assign with its definition, including ties of scores, because all nodes and versions must
// agree.
func TestAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := Size{Ranked: 1 << rapid.IntRange(0, 6).Draw(t, "scores")}
		size.Rows = size.Ranked << rapid.IntRange(0, 3).Draw(t, "fold")
		slack := rapid.SampledFrom([]tolerance{{}, {part: 10}, {part: 7, given: 7}, {part: 50, given: 20}}).Draw(t, "slack")
		most := rapid.SampledFrom([]uint32{3, 100, 1<<32 - 1}).Draw(t, "highest score")
		weight := rapid.Uint64Range(1, rapid.SampledFrom([]uint64{1, 3, 1000}).Draw(t, "heaviest"))
		var contenders []candidate
		for id := range rapid.IntRange(1, 12).Draw(t, "contenders") {
			contenders = append(contenders, candidate{
				id: uint32(id + 1), weight: weight.Draw(t, "weight"), tieBreaker: rapid.Uint32().Draw(t, "lot"),
				scores: rapid.SliceOfN(rapid.Uint32Range(0, most), size.Ranked, size.Ranked).Draw(t, "scores"),
			})
		}
		want := assignedByDefinition(slices.Clone(contenders), size, slack)
		if got := assign(contenders, size, slack); !slices.Equal(got, want) {
			t.Fatalf("owners\n%v, want\n%v", got, want)
		}
	})
}

func assignedByDefinition(contenders []candidate, size Size, slack tolerance) []int {
	setQuotas(contenders, size.Rows)
	fold := size.fold()
	owners, counts := make([]int, size.Rows), make([]int, len(contenders))
	nearest := func(row int, is func(i int) bool) int {
		best := -1
		for i := range contenders {
			if is(i) && (best < 0 || contenders[i].distance(row/fold).less(contenders[best].distance(row/fold))) {
				best = i
			}
		}
		return best
	}
	for row := range owners {
		owners[row] = nearest(row, func(int) bool { return true })
		counts[owners[row]]++
	}
	byScore := func(i int, of func(row int) bool) []int {
		var rows []int
		for row := range owners {
			if of(row) {
				rows = append(rows, row)
			}
		}
		slices.SortStableFunc(rows, func(a, b int) int { return cmp.Compare(contenders[i].scores[a/fold], contenders[i].scores[b/fold]) })
		return rows
	}
	var surplus []int
	for i := range contenders {
		rows := byScore(i, func(row int) bool { return owners[row] == i })
		kept := min(len(rows), contenders[i].quota*(100+slack.part)/100)
		surplus = append(surplus, rows[kept:]...)
		counts[i] = kept
	}
	slices.Sort(surplus)
	for _, row := range surplus {
		owners[row] = nearest(row, func(i int) bool { return counts[i] < contenders[i].quota*(100+slack.given)/100 })
		counts[owners[row]]++
	}
	for i := range contenders {
		least := contenders[i].quota * (100 - slack.part) / 100
		for _, row := range byScore(i, func(int) bool { return true }) {
			if owner := owners[row]; counts[i] < least && counts[owner] > contenders[owner].quota {
				owners[row] = i
				counts[owner]--
				counts[i]++
			}
		}
	}
	return owners
}

func TestAssignIsStable(t *testing.T) {
	node := rapid.Map(rapid.IntRange(0, 4), func(id int) forwarding.NodeID { return forwarding.NodeID(id) })
	rapid.Check(t, func(t *rapid.T) {
		row := forwarding.Row{Primary: node.Draw(t, "primary"), History: uint8(rapid.IntRange(0, forwarding.ChainLength).Draw(t, "history"))}
		for i := range row.Chain {
			row.Chain[i] = node.Draw(t, "former")
		}
		owner, gone := node.Draw(t, "owner"), node.Draw(t, "gone")
		exists := func(id forwarding.NodeID) bool { return id != gone }
		if rests := isUnchanged(row, owner, exists); rests != (successor(row, owner, exists) == row) {
			t.Fatalf("%+v: unchanged with owner %d and without node %d = %t", row, owner, gone, rests)
		}
	})
}
