// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func BenchmarkAdvance(b *testing.B) {
	w := equalWeights(100, 3)
	changed := with(w, 1, 4)
	b.Run("100 nodes, nothing cached", func(b *testing.B) {
		for b.Loop() {
			NewRendezvous().Advance(nil, forwarding.Rows, w, everyNode)
		}
	})
	r := NewRendezvous()
	old := r.Advance(nil, forwarding.Rows, w, everyNode)
	b.Run("100 nodes, new table", func(b *testing.B) {
		for b.Loop() {
			r.Advance(nil, forwarding.Rows, w, everyNode)
		}
	})
	b.Run("100 nodes, one weight changed", func(b *testing.B) {
		for b.Loop() {
			r.Advance(old, forwarding.Rows, changed, everyNode)
		}
	})
	many := equalWeights(1000, 1)
	b.Run("1000 nodes, new table", func(b *testing.B) {
		r.Advance(nil, forwarding.Rows, many, everyNode)
		for b.Loop() {
			r.Advance(nil, forwarding.Rows, many, everyNode)
		}
	})
	b.Run("100 nodes, at rest", func(b *testing.B) {
		for b.Loop() {
			r.Advance(old, forwarding.Rows, w, everyNode)
		}
	})
}

func BenchmarkShares(b *testing.B) {
	ids := endpointIDs{}
	for n := 1; n <= 20; n++ {
		ids[endpointNumber(n, false)] = 1
	}
	equal := equalShares(ids, 1)
	for b.Loop() {
		Shares(equal)
	}
}
