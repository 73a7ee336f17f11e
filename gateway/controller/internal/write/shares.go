// SPDX-License-Identifier: Apache-2.0

package write

import (
	"sync"
	"time"
)

const (
	// freely is the duration at the start of a pass without a limit of status writes.
	freely = 250 * time.Millisecond
	// share is the maximum number of status writes per namespace in a longer pass.
	share = 25
)

// shares limits the status writes per namespace in a pass, so that a tenant that keeps changing all its
// routes does not delay statuses of other tenants. The zero value is ready to use.
type shares struct {
	mu     sync.Mutex
	until  time.Time
	writes map[string]int
	more   bool
}

// begin starts a pass.
func (s *shares) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until, s.writes, s.more = time.Time{}, map[string]int{}, false
}

// take reports whether a status of the namespace may be written in this pass.
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
