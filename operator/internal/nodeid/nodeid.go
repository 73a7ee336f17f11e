// SPDX-License-Identifier: Apache-2.0

// Package nodeid assigns node IDs (LBNode.spec.id). Freed IDs are reused late, so that packets and agents
// do not mistake a new node for its predecessor: IDs never used come first, then those free for longest.
// Short IDs come before long ones. The package is pure; State must be persisted.
package nodeid

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// Max is the highest ID: IDs have 14 bits in encapsulated packets.
	Max = 16383
	// Short is the highest ID of 12 bits. Longer IDs make packets to and from the node longer.
	Short = 4095
	// reuseReserve is how many short IDs, freed last, are assigned only if there are no others.
	reuseReserve = 64
)

// A State records which IDs were assigned and which of them are free. The zero State is that of a new
// cluster.
type State struct {
	Highest int32
	// Free are unused IDs up to Highest, in the order in which they became free.
	Free []int32
}

// Observe updates the state from the used IDs, ignoring IDs out of range.
func (s State) Observe(used map[int32]struct{}) State {
	next := State{Highest: s.Highest}
	for id := range used {
		if id <= Max {
			next.Highest = max(next.Highest, id)
		}
	}
	known := map[int32]struct{}{}
	for _, id := range s.Free {
		_, isUsed := used[id]
		_, isKnown := known[id]
		if !isUsed && !isKnown && id >= 1 && id <= next.Highest {
			known[id] = struct{}{}
			next.Free = append(next.Free, id)
		}
	}
	for id := int32(1); id <= next.Highest; id++ {
		_, isUsed := used[id]
		_, isKnown := known[id]
		if !isUsed && !isKnown {
			next.Free = append(next.Free, id)
		}
	}
	return next
}

// Allocate returns an ID for a new node and the next state, or false if all IDs are in use. The state must be
// persisted before the ID is used.
func (s State) Allocate() (int32, State, bool) {
	i, rested := s.freeShort()
	switch {
	case s.Highest < Short, s.Highest < Max && !rested:
		return s.Highest + 1, State{Highest: s.Highest + 1, Free: s.Free}, true
	case len(s.Free) == 0:
		return 0, s, false
	case !rested:
		i = 0
	}
	return s.Free[i], State{Highest: s.Highest, Free: slices.Delete(slices.Clone(s.Free), i, i+1)}, true
}

// freeShort returns the short ID that has been free for longest, and whether more than reuseReserve are free.
func (s State) freeShort() (place int, rested bool) {
	count := 0
	for i, id := range s.Free {
		if id > Short {
			continue
		}
		if count == 0 {
			place = i
		}
		count++
	}
	return place, count > reuseReserve
}

// Equal reports whether two states are the same.
func (s State) Equal(other State) bool {
	return s.Highest == other.Highest && slices.Equal(s.Free, other.Free)
}

const (
	keyHighest = "highest"
	keyFree    = "free"
)

// Data returns the state for storage, at most 100 KB.
func (s State) Data() map[string]string {
	free := make([]string, 0, len(s.Free))
	for _, id := range s.Free {
		free = append(free, strconv.Itoa(int(id)))
	}
	return map[string]string{keyHighest: strconv.Itoa(int(s.Highest)), keyFree: strings.Join(free, ",")}
}

// Parse parses a stored state. Without keys it returns the zero State.
func Parse(texts map[string]string) (State, error) {
	var s State
	var err error
	if text := texts[keyHighest]; text != "" {
		if s.Highest, err = parse(text); err != nil {
			return State{}, fmt.Errorf("%s: %w", keyHighest, err)
		}
	}
	if texts[keyFree] == "" {
		return s, nil
	}
	for text := range strings.SplitSeq(texts[keyFree], ",") {
		id, err := parse(text)
		if err != nil {
			return State{}, fmt.Errorf("%s: %w", keyFree, err)
		}
		s.Free = append(s.Free, id)
	}
	return s, nil
}

func parse(text string) (int32, error) {
	id, err := strconv.ParseInt(text, 10, 32)
	if err != nil || id < 0 || id > Max {
		return 0, fmt.Errorf("%q is not a number from 0 to %d", text, Max)
	}
	return int32(id), nil
}
