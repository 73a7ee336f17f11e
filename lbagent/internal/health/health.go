// SPDX-License-Identifier: Apache-2.0

// Package health reports whether the agent is alive, which means that its passes make progress, and
// whether its node is ready.
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
	// StuckAfter is how long a pass may go without progress. The longest step
	// known, the plan of 10,000 Services from nothing, takes some seconds.
	StuckAfter = 2 * time.Minute
	// WatchEvery is how often that is to be looked at.
	WatchEvery = 5 * time.Second
	// longestStacks bounds what is logged of a loop that is stuck.
	longestStacks = 256 << 10
	// SessionGrace is how long readiness waits for sessions: long enough for
	// those of a router that is there, short enough that one which is away
	// does not stop a rollout.
	SessionGrace = 30 * time.Second
)

// Monitor follows the passes of an agent.
type Monitor struct {
	now func() time.Time

	mu sync.Mutex
	// since is when the pass in progress began; zero between passes.
	since time.Time
	// moved is when it was seen to move last, and step what it does since.
	moved time.Time
	step  string
	// begun counts passes; ended is how many of them had begun at the last end. turn is closed, and made
	// again, at each end.
	begun, ended uint64
	turn         chan struct{}
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

// New returns a Monitor with a clock, such as time.Now.
func New(now func() time.Time) *Monitor { return &Monitor{now: now, turn: make(chan struct{})} }

// Begin notes that a pass begins.
func (h *Monitor) Begin(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since, h.moved, h.step = now, now, "begin"
	h.begun++
}

// Move notes that the pass in progress has come to a step, or goes on in one.
func (h *Monitor) Move(step string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved, h.step = h.now(), step
}

// End notes how a pass ended, with the BGP sessions as they are then.
func (h *Monitor) End(now time.Time, failure error, sessions []bgp.Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = time.Time{}
	h.ended = h.begun
	close(h.turn)
	h.turn = make(chan struct{})
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

// AwaitPass waits until a pass has ended that begins after ask, which asks for one. The error is that of ctx.
func (h *Monitor) AwaitPass(ctx context.Context, ask func()) error {
	h.mu.Lock()
	want := h.begun + 1
	h.mu.Unlock()
	ask()
	for {
		h.mu.Lock()
		ended, turn := h.ended, h.turn
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

// Alive fails where a pass makes no progress. A slow one does, and lasts as long as it takes. Between
// passes nothing is to be done.
func (h *Monitor) Alive() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since.IsZero() {
		return nil
	}
	now := h.now()
	if idle := now.Sub(h.moved); idle > StuckAfter {
		return fmt.Errorf("the pass that began %s ago has made no progress for %s, in step %q: the agent should be restarted; the node forwards meanwhile",
			now.Sub(h.since).Round(time.Second), idle.Round(time.Second), h.step)
	}
	return nil
}

// Watch tells, with the stacks of all goroutines, when a pass gets stuck, and when it goes on, until ctx
// is done. Who restarts the agent has no other way to know why.
func (h *Monitor) Watch(ctx context.Context, every time.Duration, logger logr.Logger, stalled func()) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var told error
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		err := h.Alive()
		switch {
		case err != nil && told == nil:
			stalled()
			logger.Error(err, "The agent is stuck: its health check fails from now on, and on links other nodes answer", "stacks", stacks())
		case err == nil && told != nil:
			logger.Info("The agent goes on")
		}
		told = err
	}
}

// stacks are those of all goroutines, equal ones together.
func stacks() string {
	var all strings.Builder
	// Nothing can fail in memory.
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
	text := all.String()
	return text[:min(len(text), longestStacks)]
}

// Ready fails until the first pass that succeeds, and while the sessions of the start have time to be
// established.
func (h *Monitor) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.first.IsZero():
		return errors.New("the first pass is not done: waiting for the API server's objects")
	case h.failure != nil:
		return fmt.Errorf("the last pass failed: %w", h.failure)
	case h.announcing || h.now().Sub(h.first) >= SessionGrace:
		return nil
	default:
		return fmt.Errorf("BGP sessions are not established yet: %s", strings.Join(h.missing, ", "))
	}
}
