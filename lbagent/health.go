// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
)

const (
	// stuckAfter is how long a pass may take. The longest known, 1,000
	// Services from nothing, takes seconds.
	stuckAfter = time.Minute
	// sessionGrace is how long readiness waits for sessions: long enough for
	// those of a router that is there, short enough that one which is away
	// does not stop a rollout.
	sessionGrace = 30 * time.Second
)

// health reports whether the agent is alive and whether its node is ready.
type health struct {
	now func() time.Time

	mu sync.Mutex
	// since is when the pass in progress began; zero between passes.
	since time.Time
	// first is when the first pass ended.
	first time.Time
	// failure is that of the last pass.
	failure error
	// announcing is true once every session has been established, or once
	// the time for that is over: a router that goes later makes no node
	// unready.
	announcing bool
	missing    []string
}

func newHealth() *health { return &health{now: time.Now} }

func (h *health) begin(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = now
}

func (h *health) end(now time.Time, failure error, sessions []bgp.Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = time.Time{}
	if h.first.IsZero() {
		h.first = now
	}
	h.failure = failure
	h.missing = nil
	for _, session := range sessions {
		if !isEstablished(session) {
			h.missing = append(h.missing, session.Peer)
		}
	}
	if failure == nil && len(h.missing) == 0 {
		h.announcing = true
	}
}

func (h *health) alive() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since.IsZero() {
		return nil
	}
	if took := h.now().Sub(h.since); took > stuckAfter {
		return fmt.Errorf("a pass has been running for %s", took.Round(time.Second))
	}
	return nil
}

func (h *health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.first.IsZero():
		return errors.New("the first pass is not done: waiting for the API server's objects")
	case h.failure != nil:
		return fmt.Errorf("the last pass failed: %w", h.failure)
	case h.announcing || h.now().Sub(h.first) >= sessionGrace:
		return nil
	default:
		return fmt.Errorf("BGP sessions are not established yet: %s", strings.Join(h.missing, ", "))
	}
}
