// SPDX-License-Identifier: Apache-2.0

package write

import (
	"sync"
	"time"
)

const (
	// unlimitedPeriod is the duration at the start of a pass without a limit of status writes.
	unlimitedPeriod = 250 * time.Millisecond
	// budgetPerNamespace is the maximum number of status writes per namespace in a longer pass.
	budgetPerNamespace = 25
)

// statusBudget limits the status writes per namespace in a pass, so that a tenant that keeps changing all its
// routes does not delay statuses of other tenants. The zero value is ready to use.
type statusBudget struct {
	mu     sync.Mutex
	until  time.Time
	writes map[string]int
	more   bool
}

// begin starts a pass.
func (s *statusBudget) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until, s.writes, s.more = time.Time{}, map[string]int{}, false
}

// take reports whether a status of the namespace may be written in this pass.
func (s *statusBudget) take(namespace string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until.IsZero() {
		s.until = now.Add(unlimitedPeriod)
	}
	if s.writes[namespace] >= budgetPerNamespace && now.After(s.until) {
		s.more = true
		return false
	}
	s.writes[namespace]++
	return true
}

// isMore reports whether statuses were left to the next pass.
func (s *statusBudget) isMore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.more
}
