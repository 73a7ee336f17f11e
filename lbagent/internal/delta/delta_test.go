// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestBetween(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfNDistinct(rapid.IntRange(0, 30), 0, 25, rapid.ID[int])
		before := list.Draw(t, "before")
		after := list.Draw(t, "after")
		if rapid.Bool().Draw(t, "mostly the same") {
			after = slices.Clone(before)
			for range min(len(after), rapid.IntRange(0, 3).Draw(t, "edits")) {
				after[rapid.IntRange(0, len(after)-1).Draw(t, "place")] += 100
			}
		}
		came, went := Between(before, after)
		compare(t, "came", came, after, before)
		compare(t, "went", went, before, after)
	})
}

func compare(t *rapid.T, what string, got, in, notIn []int) {
	want := slices.DeleteFunc(slices.Clone(in), func(n int) bool { return n == 0 || slices.Contains(notIn, n) })
	slices.Sort(want)
	got = slices.Sorted(slices.Values(got))
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func TestBetweenSameList(t *testing.T) {
	list := []int{1, 2, 3}
	if came, went := Between(list, list); came != nil || went != nil || !IsSame(list, list) || IsSame(list, list[:2]) {
		t.Errorf("added %v, removed %v, want nil", came, went)
	}
	allocations := testing.AllocsPerRun(10, func() { Between(list, list) })
	if allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
}
