// SPDX-License-Identifier: Apache-2.0

// Package nodeid gives nodes their ids (LBNode.spec.id). An id that became free is given
// again late, so that no packet or agent takes the new node for the one before it. Ids that
// no node has ever had come first, then those that have been free for longest. But longer ids
// come after short ones. The package is pure; what must survive a restart is in a State.
package nodeid

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// Max is the highest id: ids have 14 bits in encapsulated packets.
	Max = 16383
	// Short is the highest id of 12 bits. Packets to and from nodes with a longer one are longer.
	Short = 4095
	// resting is how many short ids, those freed last, are not given while there are others.
	resting = 64
)

// State remembers which ids have been given, and which of them are free. The zero State
// is that of a cluster that never had a node.
type State struct {
	// Highest is the highest id that was ever given.
	Highest int32
	// Free are ids up to Highest that no node has, the one that became free first as
	// the first.
	Free []int32
}

// Observe returns the state after nodes have been seen to have these ids. Ids that became
// free since the last time count as freed now, in the order of their numbers. Ids out of
// range are ignored.
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

// Give returns an id for a new node and the state afterwards; false when all are in use.
// The state must be stored before the id is used.
func (s State) Give() (int32, State, bool) {
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

// freeShort returns the place of the short id that is free for longest, and whether more than those
// that rest are free.
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
	return place, count > resting
}

// Equal reports whether two states are the same.
func (s State) Equal(other State) bool {
	return s.Highest == other.Highest && slices.Equal(s.Free, other.Free)
}

// Keys of the texts of a State.
const (
	keyHighest = "highest"
	keyFree    = "free"
)

// Texts returns the state as it is stored: at most 100 KB.
func (s State) Texts() map[string]string {
	free := make([]string, 0, len(s.Free))
	for _, id := range s.Free {
		free = append(free, strconv.Itoa(int(id)))
	}
	return map[string]string{keyHighest: strconv.Itoa(int(s.Highest)), keyFree: strings.Join(free, ",")}
}

// Parse reads a stored state; texts without any key are the zero State.
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
