// SPDX-License-Identifier: Apache-2.0

package table

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// TestScoresDecide compares nearestEqual with distances, including ties and extreme scores.
func TestScoresDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const rows = 8
		weight := uint64(rapid.Uint32Range(1, math.MaxUint32).Draw(t, "weight"))
		score := rapid.OneOf(rapid.Uint32Range(0, 3), rapid.SampledFrom([]uint32{math.MaxUint32 - 1, math.MaxUint32}))
		var contenders []candidate
		for id := range rapid.IntRange(1, 6).Draw(t, "contenders") {
			contenders = append(contenders, candidate{
				id: uint32(id + 1), weight: weight, scores: rapid.SliceOfN(score, rows, rows).Draw(t, "scores"),
			})
		}
		owners := nearestEqual(contenders, rows)
		for row, owner := range owners {
			for i := range contenders {
				d := contenders[i].distance(row)
				if own := contenders[owner].distance(row); d.less(own) || i < owner && !own.less(d) {
					t.Fatalf("row %d is owned by contender %d, but %d is closer", row, owner, i)
				}
			}
			previous := forwarding.Row{
				Primary: forwarding.NodeID(contenders[owner].id),
				Chain:   [forwarding.ChainLength]forwarding.NodeID{forwarding.NodeID(rapid.IntRange(0, 7).Draw(t, "former owner"))},
			}
			byDistance, byScore := previous, previous
			distances, scores := newSuccessors(contenders), newSuccessors(contenders)
			distances.alike = false
			distances.fill(&byDistance, row)
			scores.fill(&byScore, row)
			if byDistance != byScore {
				t.Fatalf("row %d: by scores %+v, by distances %+v", row, byScore, byDistance)
			}
		}
	})
}
