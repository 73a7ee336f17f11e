// SPDX-License-Identifier: Apache-2.0

package write

import (
	"sync"
	"time"
)

const (
	// unlimitedPeriod is the start of a pass without a limit of status writes.
	unlimitedPeriod = 250 * time.Millisecond
	// budgetPerNamespace is the maximum number of status writes per namespace in a longer pass.
	budgetPerNamespace = 25
)

// statusBudget limits a namespace's status writes in a pass, so that a busy tenant does not delay others. The
// zero value is ready to use.
type statusBudget struct {
	mu     sync.Mutex
	until  time.Time
	writes map[string]int
	more   bool
}

func (s *statusBudget) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until, s.writes, s.more = time.Time{}, map[string]int{}, false
}

// allow reports whether a status of the namespace may be written in this pass.
func (s *statusBudget) allow(namespace string, now time.Time) bool {
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

func (s *statusBudget) isMore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.more
}
