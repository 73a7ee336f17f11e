// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"testing"
)

func BenchmarkAdvance(b *testing.B) {
	w := equalWeights(100, 3)
	changed := with(w, 1, 4)
	b.Run("100 nodes, nothing cached", func(b *testing.B) {
		for b.Loop() {
			NewRendezvous().Advance(nil, Ordinary, w, everyNode)
		}
	})
	r := NewRendezvous()
	old := r.Advance(nil, Ordinary, w, everyNode)
	b.Run("100 nodes, new table", func(b *testing.B) {
		for b.Loop() {
			r.Advance(nil, Ordinary, w, everyNode)
		}
	})
	b.Run("100 nodes, one weight changed", func(b *testing.B) {
		for b.Loop() {
			r.Advance(old, Ordinary, changed, everyNode)
		}
	})
	many := equalWeights(1000, 1)
	b.Run("1000 nodes, new table", func(b *testing.B) {
		r.Advance(nil, Ordinary, many, everyNode)
		for b.Loop() {
			r.Advance(nil, Ordinary, many, everyNode)
		}
	})
	for _, size := range []Size{{512, 512}, {32768, 512}, {32768, 4096}} {
		b.Run(fmt.Sprintf("1000 nodes, %d rows with %d scores", size.Rows, size.Ranked), func(b *testing.B) {
			for b.Loop() {
				r.Advance(nil, size, many, everyNode)
			}
		})
	}
	// The size of most Services.
	few, small := equalWeights(10, 1), Size{512, 512}
	fewer := with(few, 1, 0)
	b.Run("10 nodes, 512 rows, new table", func(b *testing.B) {
		for b.Loop() {
			r.Advance(nil, small, few, everyNode)
		}
	})
	held := r.Advance(nil, small, few, everyNode)
	b.Run("10 nodes, 512 rows, one without pods", func(b *testing.B) {
		for b.Loop() {
			r.Advance(held, small, fewer, everyNode)
		}
	})
	b.Run("10 nodes, 512 rows, at rest", func(b *testing.B) {
		for b.Loop() {
			r.Advance(held, small, few, everyNode)
		}
	})
	b.Run("100 nodes, at rest", func(b *testing.B) {
		for b.Loop() {
			r.Advance(old, Ordinary, w, everyNode)
		}
	})
}
