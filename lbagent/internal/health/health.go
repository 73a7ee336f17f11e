// SPDX-License-Identifier: Apache-2.0

// Package health reports whether the agent's passes make progress and whether the node is ready.
package health

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
)

const (
	// StuckAfter is how long a pass may lack progress. The longest known step, planning 10,000 Services
	// from scratch, takes seconds.
	StuckAfter = 2 * time.Minute
	// WatchEvery is the interval of checks.
	WatchEvery = 5 * time.Second
	// maxStackBytes bounds the logged stacks in bytes.
	maxStackBytes = 256 << 10
	// SessionGrace is how long readiness waits for BGP sessions: enough for a reachable router, and short
	// enough that an absent one does not block a rollout.
	SessionGrace = 30 * time.Second
)

// Monitor tracks the passes of an agent.
type Monitor struct {
	now func() time.Time

	mu        sync.Mutex
	since     time.Time
	stepStart time.Time
	step      string
	// begun counts passes, ended is its value at the last end. passEnded is closed and replaced at each end.
	begun, ended uint64
	passEnded    chan struct{}
	first        time.Time
	failure      error
	// announcing is true once all sessions were established or SessionGrace has passed. Later losses of
	// routers do not affect readiness.
	announcing bool
	missing    []string
}

// New returns a Monitor that uses the given clock.
func New(now func() time.Time) *Monitor { return &Monitor{now: now, passEnded: make(chan struct{})} }

// Begin records the start of a pass.
func (h *Monitor) Begin(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since, h.stepStart, h.step = now, now, "begin"
	h.begun++
}

// SetStep records progress of the current pass.
func (h *Monitor) SetStep(step string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stepStart, h.step = h.now(), step
}

// End records the result of a pass and the BGP sessions.
func (h *Monitor) End(now time.Time, failure error, sessions []bgp.Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = time.Time{}
	h.ended = h.begun
	close(h.passEnded)
	h.passEnded = make(chan struct{})
	if h.first.IsZero() {
		h.first = now
	}
	h.failure = failure
	h.missing = nil
	for _, session := range sessions {
		if !session.IsEstablished() {
			h.missing = append(h.missing, session.Peer)
		}
	}
	if failure == nil && len(h.missing) == 0 {
		h.announcing = true
	}
}

// AwaitPass waits for the end of a pass that begins after ask. It returns the error of ctx.
func (h *Monitor) AwaitPass(ctx context.Context, ask func()) error {
	h.mu.Lock()
	want := h.begun + 1
	h.mu.Unlock()
	ask()
	for {
		h.mu.Lock()
		ended, turn := h.ended, h.passEnded
		h.mu.Unlock()
		if ended >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-turn:
		}
	}
}

// Alive returns an error if a pass makes no progress. Slow passes and idle periods are fine.
func (h *Monitor) Alive() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since.IsZero() {
		return nil
	}
	now := h.now()
	if idle := now.Sub(h.stepStart); idle > StuckAfter {
		return fmt.Errorf("the pass that began %s ago has made no progress for %s, in step %q: the agent should be restarted; the node forwards meanwhile",
			now.Sub(h.since).Round(time.Second), idle.Round(time.Second), h.step)
	}
	return nil
}

// Watch logs the stacks of all goroutines when a pass gets stuck, and its recovery, until ctx is done. The
// cause would be unknown after a restart otherwise.
func (h *Monitor) Watch(ctx context.Context, every time.Duration, logger logr.Logger, stalled func()) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var logged error
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		err := h.Alive()
		switch {
		case err != nil && logged == nil:
			stalled()
			logger.Error(err, "The agent is stuck: its health check fails, and other nodes answer for VIPs on links", "stacks", stacks())
		case err == nil && logged != nil:
			logger.Info("The agent makes progress again")
		}
		logged = err
	}
}

func stacks() string {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
	text := all.String()
	return text[:min(len(text), maxStackBytes)]
}

// Ready returns an error before the first successful pass, and while sessions are not established during
// SessionGrace.
func (h *Monitor) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.first.IsZero():
		return errors.New("the first pass has not finished: waiting for the API server's objects")
	case h.failure != nil:
		return fmt.Errorf("the last pass failed: %w", h.failure)
	case h.announcing || h.now().Sub(h.first) >= SessionGrace:
		return nil
	default:
		return fmt.Errorf("BGP sessions are not established yet: %s", strings.Join(h.missing, ", "))
	}
}
