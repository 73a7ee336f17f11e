// SPDX-License-Identifier: Apache-2.0

package lru

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(0, 4).Draw(t, "most")
		table := New[int, int](most)
		var pairs [][2]int
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			key := rapid.IntRange(0, 6).Draw(t, "key")
			at := slices.IndexFunc(pairs, func(pair [2]int) bool { return pair[0] == key })
			if rapid.Bool().Draw(t, "put") {
				value := rapid.Int().Draw(t, "value")
				table.Put(key, value)
				if at >= 0 {
					pairs = slices.Delete(pairs, at, at+1)
				}
				pairs = slices.Insert(pairs, 0, [2]int{key, value})
				pairs = pairs[:min(len(pairs), max(most, 1))]
			} else if value, ok := table.Get(key); ok != (at >= 0) || ok && value != pairs[at][1] {
				t.Fatalf("Get(%d) = %d, %v; want one of %v", key, value, ok, pairs)
			} else if ok {
				pair := pairs[at]
				pairs = slices.Insert(slices.Delete(pairs, at, at+1), 0, pair)
			}
			if table.Len() != len(pairs) || table.order.Len() != len(pairs) {
				t.Fatalf("%d entries, %d in order; want %d", table.Len(), table.order.Len(), len(pairs))
			}
		}
	})
}
