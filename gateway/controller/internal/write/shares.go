// SPDX-License-Identifier: Apache-2.0

package write

import (
	"sync"
	"time"
)

const (
	// freely is for how long of a pass statuses are written as they come.
	freely = 250 * time.Millisecond
	// share is how many statuses of a namespace are written of a pass that takes longer.
	share = 25
)

// shares bound how many statuses of one namespace a pass writes. A tenant that changes all of its routes
// all the time makes each pass long, and what another one has changed meanwhile waits for the next one.
// The zero value is ready.
type shares struct {
	mu     sync.Mutex
	until  time.Time
	writes map[string]int
	more   bool
}

// begin begins a pass.
func (s *shares) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until, s.writes, s.more = time.Time{}, map[string]int{}, false
}

// take reports whether a status of a namespace may be written in this pass.
func (s *shares) take(namespace string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until.IsZero() {
		s.until = now.Add(freely)
	}
	if s.writes[namespace] >= share && now.After(s.until) {
		s.more = true
		return false
	}
	s.writes[namespace]++
	return true
}

// isMore reports whether statuses were left to the next pass.
func (s *shares) isMore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.more
}
