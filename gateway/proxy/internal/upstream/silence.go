// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// leftGrace is the response time left to a removed endpoint for a request that cannot be retried.
const leftGrace = 30 * time.Second

// silence cancels an attempt that has no response within limit or whose endpoint is removed.
type silence struct {
	limit  time.Duration
	cancel context.CancelCauseFunc

	mutex    sync.Mutex
	answered bool
	timers   []*time.Timer
	stop     func() bool
}

func newSilence(endpoint *balance.Endpoint, limit time.Duration, repeats bool, cancel context.CancelCauseFunc) *silence {
	s := &silence{limit: limit, cancel: cancel}
	grace := leftGrace
	if repeats {
		grace = 0
	}
	s.stop = endpoint.AfterLeave(func() { s.after(grace, errLeft) })
	return s
}

// sent starts limit when the request is written.
func (s *silence) sent() {
	if s.limit > 0 {
		s.after(s.limit, ErrTimeout)
	}
}

func (s *silence) after(period time.Duration, cause error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.answered {
		s.timers = append(s.timers, time.AfterFunc(period, func() { s.end(cause) }))
	}
}

func (s *silence) end(cause error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.answered {
		s.cancel(cause)
	}
}

// over stops all timers after a response header or an error.
func (s *silence) over() {
	s.stop()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.answered = true
	for _, timer := range s.timers {
		timer.Stop()
	}
}
