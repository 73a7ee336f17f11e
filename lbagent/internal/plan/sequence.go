// SPDX-License-Identifier: Apache-2.0

package plan

// sequence gives out numbers round-robin, so that one that became free is not
// given out again before all others have been.
type sequence struct{ last uint32 }

// next returns a number between 1 and limit that is not taken; false where all
// are.
func (s *sequence) next(limit int, taken func(uint32) bool) (uint32, bool) {
	for range limit {
		s.last++
		if s.last > uint32(limit) {
			s.last = 1
		}
		if !taken(s.last) {
			return s.last, true
		}
	}
	return 0, false
}

// slots gives out the lowest free slots. A slot that was in use when the plan
// began is never given out, only kept by whose it was.
type slots[S ~uint32] struct {
	limit int
	// had reports whether the maps have the slot, used are others that are not free.
	had  func(S) bool
	used map[S]struct{}
	free S
}

// newSlots returns slots of which some are in use.
func newSlots[S ~uint32](limit int, had func(S) bool) *slots[S] {
	return &slots[S]{limit: limit, had: had, used: map[S]struct{}{}, free: 1}
}

// use marks a slot as not free; zero is no slot.
func (s *slots[S]) use(slot S) {
	if slot != 0 && !s.had(slot) {
		s.used[slot] = struct{}{}
	}
}

// keep leaves a slot to whose it was; false where it is none or beyond the
// limit.
func (s *slots[S]) keep(slot S) bool {
	return slot != 0 && int64(slot) <= int64(s.limit)
}

// peek returns the lowest free slot; false where none is.
func (s *slots[S]) peek() (S, bool) {
	for ; int64(s.free) <= int64(s.limit); s.free++ {
		if _, used := s.used[s.free]; !used && !s.had(s.free) {
			return s.free, true
		}
	}
	return 0, false
}

// take gives out the lowest free slot; false where none is.
func (s *slots[S]) take() (S, bool) {
	slot, found := s.peek()
	if found {
		s.use(slot)
	}
	return slot, found
}
