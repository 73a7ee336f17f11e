// SPDX-License-Identifier: Apache-2.0

package plan

// sequence allocates numbers round-robin, so that a freed number is reused as late as possible.
type sequence struct{ last uint32 }

// next returns a free number between 1 and limit; false if all are taken.
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

// slots allocates the lowest free slots. Slots in use at the start of the plan are never allocated, only
// retained by their owner.
type slots[S ~uint32] struct {
	limit int
	// had reports whether the maps hold the slot; used are other slots that are not free.
	had  func(S) bool
	used map[S]struct{}
	free S
}

func newSlots[S ~uint32](limit int, had func(S) bool) *slots[S] {
	return &slots[S]{limit: limit, had: had, used: map[S]struct{}{}, free: 1}
}

func (s *slots[S]) use(slot S) {
	if slot != 0 && !s.had(slot) {
		s.used[slot] = struct{}{}
	}
}

// retain reports whether the owner can retain a slot: whether the slot exists within the limit.
func (s *slots[S]) retain(slot S) bool {
	return slot != 0 && int64(slot) <= int64(s.limit)
}

func (s *slots[S]) peek() (S, bool) {
	for ; int64(s.free) <= int64(s.limit); s.free++ {
		if _, used := s.used[s.free]; !used && !s.had(s.free) {
			return s.free, true
		}
	}
	return 0, false
}

func (s *slots[S]) allocate() (S, bool) {
	slot, found := s.peek()
	if found {
		s.use(slot)
	}
	return slot, found
}
