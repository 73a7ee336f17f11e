// SPDX-License-Identifier: Apache-2.0

package nodeid

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func set(ids ...int32) map[int32]struct{} {
	used := map[int32]struct{}{}
	for _, id := range ids {
		used[id] = struct{}{}
	}
	return used
}

func TestAllocate(t *testing.T) {
	full := set()
	for id := int32(1); id <= Max; id++ {
		full[id] = struct{}{}
	}
	without := func(ids ...int32) map[int32]struct{} {
		used := maps.Clone(full)
		for _, id := range ids {
			delete(used, id)
		}
		return used
	}
	short := without(4, 9)
	maps.DeleteFunc(short, func(id int32, _ struct{}) bool { return id > Short })
	var resters []int32
	for id := int32(reuseReserve + 7); id >= 7; id-- {
		resters = append(resters, id)
	}
	resters = append([]int32{Max}, resters...)
	shortWithout := without(resters...)
	maps.DeleteFunc(shortWithout, func(id int32, _ struct{}) bool { return id > Short })
	for name, test := range map[string]struct {
		state State
		used  map[int32]struct{}
		want  int32
		ok    bool
	}{
		"first id":                     {State{}, set(), 1, true},
		"above the highest id":         {State{}, set(3, 7), 8, true},
		"above a removed id":           {State{Highest: 8}, set(3, 7), 9, true},
		"last short id":                {State{}, set(Short - 1), Short, true},
		"few free short ids":           {State{Highest: Short, Free: []int32{9, 4}}, short, Short + 1, true},
		"short ids before long ids":    {State{Highest: Short, Free: resters[1:]}, shortWithout, resters[1], true},
		"one free short id too many":   {State{Highest: Max, Free: resters}, without(resters...), resters[1], true},
		"last id":                      {State{Highest: Max - 1}, without(Max), Max, true},
		"longest free id":              {State{Highest: Max, Free: []int32{9, 4}}, without(4, 9), 9, true},
		"recently freed id last":       {State{Highest: Max, Free: []int32{9}}, without(4, 9), 9, true},
		"free id used in between":      {State{Highest: Max, Free: []int32{9, 4}}, without(4), 4, true},
		"all ids in use":               {State{Highest: Max}, full, 0, false},
		"ids out of range are ignored": {State{}, set(-1, 0, Max+1), 1, true},
		"state lost":                   {State{}, without(7, 12), 7, true},
	} {
		observed := test.state.Observe(test.used)
		if id, _, ok := observed.Allocate(); id != test.want || ok != test.ok || observed.Highest > Max {
			t.Errorf("%s: Allocate = %d, %t; want %d, %t; highest id %d", name, id, ok, test.want, test.ok, observed.Highest)
		}
	}
}

// Nodes are added and removed, and the operator is restarted or crashes between storing a state and using
// the ID.
func TestLeastRecentlyFreedFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := rapid.SampledFrom([]int32{Short, Max}).Draw(t, "last")
		start := rapid.Int32Range(last-6, last).Draw(t, "highest")
		state, used := State{Highest: start}, set()
		for id := int32(1); id <= start; id++ {
			used[id] = struct{}{}
		}
		// freed is the step at which an ID became free; IDs that were never assigned are absent.
		freed := map[int32]int{}
		for id := range rapid.Int32Range(0, reuseReserve+3).Draw(t, "free") {
			delete(used, 100+id)
			freed[100+id] = int(id) - 1000
		}
		state = state.Observe(used)
		for step := 1; step <= rapid.IntRange(1, 60).Draw(t, "steps"); step++ {
			switch rapid.SampledFrom([]string{"join", "join", "leave", "restart"}).Draw(t, "event") {
			case "join":
				observed := state.Observe(used)
				id, next, ok := observed.Allocate()
				if want := givenNext(observed.Highest, freed); id != want || ok != (want != 0) {
					t.Fatalf("id %d, %t; want %d", id, ok, want)
				}
				if state = next; !ok {
					continue
				}
				if rapid.Bool().Draw(t, "used") {
					used[id] = struct{}{}
					delete(freed, id)
				} else {
					freed[id] = step
				}
			case "leave":
				id := rapid.SampledFrom(slices.Sorted(maps.Keys(used))).Draw(t, "leaving")
				delete(used, id)
				freed[id] = step
			case "restart":
				stored, err := Parse(state.Data())
				if err != nil || !stored.Equal(state) {
					t.Fatalf("stored %+v, read %+v, error %v", state, stored, err)
				}
				state = stored
			}
			state = state.Observe(used)
		}
	})
}

// givenNext returns the ID that the next node must get, or 0 if all are in use.
func givenNext(highest int32, freed map[int32]int) int32 {
	longest := func(ids []int32) int32 {
		return slices.MinFunc(ids, func(a, b int32) int { return freed[a] - freed[b] })
	}
	all := slices.Collect(maps.Keys(freed))
	short := slices.DeleteFunc(slices.Clone(all), func(id int32) bool { return id > Short })
	switch {
	case highest < Short:
		return highest + 1
	case len(short) > reuseReserve:
		return longest(short)
	case highest < Max:
		return highest + 1
	case len(all) > 0:
		return longest(all)
	default:
		return 0
	}
}

func TestDataRoundTrip(t *testing.T) {
	largest := State{Highest: Max}
	for id := int32(Max); id >= 1; id-- {
		largest.Free = append(largest.Free, id)
	}
	for _, state := range []State{{}, {Highest: 3}, {Highest: 7, Free: []int32{5, 2}}, largest} {
		texts := state.Data()
		if got, err := Parse(texts); err != nil || !got.Equal(state) {
			t.Errorf("%+v parsed as %+v, error %v", state, got, err)
		}
		if size := len(texts[keyFree]); size > 100_000 {
			t.Errorf("state of %d bytes", size)
		}
	}
	for _, texts := range []map[string]string{
		{keyHighest: "x"}, {keyHighest: "16384"}, {keyHighest: "-1"}, {keyHighest: "7", keyFree: "1,,2"}, {keyFree: "1 2"},
	} {
		if got, err := Parse(texts); err == nil {
			t.Errorf("%v parsed as %+v, want an error", texts, got)
		}
	}
	if got, err := Parse(nil); err != nil || !got.Equal(State{}) {
		t.Errorf("empty data parsed as %+v, error %v", got, err)
	}
}
