// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// removedGrace is the response time left to a removed endpoint for a request that cannot be retried.
const removedGrace = 30 * time.Second

// responseTimer cancels an attempt that has no response within limit or whose endpoint is removed.
type responseTimer struct {
	limit  time.Duration
	cancel context.CancelCauseFunc

	mutex  sync.Mutex
	isDone bool
	timers []*time.Timer
	stop   func() bool
}

func newResponseTimer(endpoint *balance.Endpoint, limit time.Duration, isRepeatable bool, cancel context.CancelCauseFunc) *responseTimer {
	s := &responseTimer{limit: limit, cancel: cancel}
	grace := removedGrace
	if isRepeatable {
		grace = 0
	}
	s.stop = endpoint.AfterRemoval(func() { s.schedule(grace, errEndpointRemoved) })
	return s
}

// requestSent starts limit when the request is written.
func (s *responseTimer) requestSent() {
	if s.limit > 0 {
		s.schedule(s.limit, ErrTimeout)
	}
}

func (s *responseTimer) schedule(period time.Duration, cause error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.isDone {
		s.timers = append(s.timers, time.AfterFunc(period, func() { s.expire(cause) }))
	}
}

func (s *responseTimer) expire(cause error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.isDone {
		s.cancel(cause)
	}
}

// stopAll stops all timers after a response header or an error.
func (s *responseTimer) stopAll() {
	s.stop()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.isDone = true
	for _, timer := range s.timers {
		timer.Stop()
	}
}
