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

func TestGive(t *testing.T) {
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
	for name, test := range map[string]struct {
		state State
		used  map[int32]struct{}
		want  int32
		ok    bool
	}{
		"the first":                       {State{}, set(), 1, true},
		"above the highest":               {State{}, set(3, 7), 8, true},
		"above one that is gone":          {State{Highest: 8}, set(3, 7), 9, true},
		"the last":                        {State{}, set(4094), 4095, true},
		"free for longest":                {State{Highest: Max, Free: []int32{9, 4}}, without(4, 9), 9, true},
		"just freed comes last":           {State{Highest: Max, Free: []int32{9}}, without(4, 9), 9, true},
		"taken in between":                {State{Highest: Max, Free: []int32{9, 4}}, without(4), 4, true},
		"all are in use":                  {State{Highest: Max}, full, 0, false},
		"ids out of range are ignored":    {State{}, set(-1, 0, 5000), 1, true},
		"nothing is known, as after loss": {State{}, without(7, 12), 7, true},
	} {
		if id, _, ok := test.state.Observe(test.used).Give(); id != test.want || ok != test.ok {
			t.Errorf("%s: got %d, %t; want %d, %t", name, id, ok, test.want, test.ok)
		}
	}
}

// A cluster whose nodes come and go, with an operator that is restarted and may die
// between storing a state and using the id.
func TestLeastRecentlyFreedFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Few ids are left, so that they are used up.
		start := rapid.Int32Range(Max-6, Max).Draw(t, "highest")
		state, used := State{Highest: start}, set()
		for id := int32(1); id <= start; id++ {
			used[id] = struct{}{}
		}
		// freed says when an id became free; those never given are absent.
		freed := map[int32]int{}
		for step := 1; step <= rapid.IntRange(1, 60).Draw(t, "steps"); step++ {
			switch rapid.SampledFrom([]string{"join", "join", "leave", "restart"}).Draw(t, "event") {
			case "join":
				observed := state.Observe(used)
				id, next, ok := observed.Give()
				checkGiven(t, id, ok, used, freed)
				if state = next; !ok {
					continue
				}
				if rapid.Bool().Draw(t, "used") {
					used[id] = struct{}{}
					delete(freed, id)
				} else {
					// The operator died before it created the LBNode.
					freed[id] = step
				}
			case "leave":
				id := rapid.SampledFrom(slices.Sorted(maps.Keys(used))).Draw(t, "leaving")
				delete(used, id)
				freed[id] = step
			case "restart":
				stored, err := Parse(state.Texts())
				if err != nil || !stored.Equal(state) {
					t.Fatalf("stored %+v, read %+v, error %v", state, stored, err)
				}
				state = stored
			}
			state = state.Observe(used)
		}
	})
}

func checkGiven(t *rapid.T, id int32, ok bool, used map[int32]struct{}, freed map[int32]int) {
	if !ok {
		if len(used) != Max {
			t.Fatalf("no id, and %d nodes", len(used))
		}
		return
	}
	if _, found := used[id]; found || id < 1 || id > Max {
		t.Fatalf("id %d is in use or out of range", id)
	}
	when, again := freed[id]
	if !again {
		return
	}
	if len(used)+len(freed) < Max {
		t.Fatalf("id %d is given again, and some were never given", id)
	}
	for other, earlier := range freed {
		if earlier < when {
			t.Fatalf("id %d became free at step %d, and %d already at step %d", id, when, other, earlier)
		}
	}
}

func TestTexts(t *testing.T) {
	largest := State{Highest: Max}
	for id := int32(Max); id >= 1; id-- {
		largest.Free = append(largest.Free, id)
	}
	for _, state := range []State{{}, {Highest: 3}, {Highest: 7, Free: []int32{5, 2}}, largest} {
		texts := state.Texts()
		if got, err := Parse(texts); err != nil || !got.Equal(state) {
			t.Errorf("%+v is read as %+v, error %v", state, got, err)
		}
		if size := len(texts[keyFree]); size > 20_000 {
			t.Errorf("a state has %d bytes", size)
		}
	}
	for _, texts := range []map[string]string{
		{keyHighest: "x"}, {keyHighest: "4096"}, {keyHighest: "-1"}, {keyHighest: "7", keyFree: "1,,2"}, {keyFree: "1 2"},
	} {
		if got, err := Parse(texts); err == nil {
			t.Errorf("%v is read as %+v", texts, got)
		}
	}
	if got, err := Parse(nil); err != nil || !got.Equal(State{}) {
		t.Errorf("nothing is read as %+v, error %v", got, err)
	}
}
