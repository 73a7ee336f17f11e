// SPDX-License-Identifier: Apache-2.0

// Package shutdown has a node hand over its routes before the end of an agent after which none follows
// for a while: of one that is uninstalled, or whose node shuts down.
package shutdown

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

const (
	// askTimeout is how long an agent that is told to end asks whether another one follows.
	askTimeout = time.Second
	// lookAgain is how long after that it goes on asking. Kubelet tells that its node shuts down
	// while it begins to end pods, so the first of them may end before the API server knows.
	lookAgain = 500 * time.Millisecond
	// askAgain is the time between two questions.
	askAgain = 100 * time.Millisecond
	// Timeout bounds how much longer than its delays a handover takes. It ends before the
	// grace period of the pod.
	Timeout = 5 * time.Second
	// firstRetry and longestRetry are the first and the longest time until the DaemonSet is looked
	// for again.
	firstRetry   = time.Second
	longestRetry = 30 * time.Second
)

// Handover tells a shutdown from a restart of the agent. One that restarts leaves its routes, which
// routers keep. One that is shut down hands them over first.
type Handover struct {
	// installed reports whether the DaemonSet of the agents is there, shutsDown whether the
	// node's Node says that it shuts down.
	installed, shutsDown func(ctx context.Context) (bool, error)
	logger               logr.Logger

	// known is true once the DaemonSet was seen: agents may also run in another way.
	known atomic.Bool
	// down is true where the last pass saw that the node shuts down.
	down atomic.Bool
	// begun is true from when the node is to withdraw everything; left has a value once it has.
	begun atomic.Bool
	left  chan struct{}
}

// New returns the handover of an agent. installed reports whether the DaemonSet of the agents is there,
// shutsDown whether the node's Node says that it shuts down.
func New(installed, shutsDown func(ctx context.Context) (bool, error), logger logr.Logger) *Handover {
	return &Handover{installed: installed, shutsDown: shutsDown, logger: logger, left: make(chan struct{}, 1)}
}

// Learn looks for the DaemonSet until there is an answer.
func (h *Handover) Learn(ctx context.Context) error {
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		there, err := h.installed(ctx)
		if err == nil {
			h.known.Store(there)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// See notes whether the node shuts down, as the last pass saw it.
func (h *Handover) See(shutsDown bool) { h.down.Store(shutsDown) }

// why returns why no agent follows this one, as a sentence; empty where one does. Without an
// answer one does.
func (h *Handover) why(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for until := time.Now().Add(lookAgain); ; {
		if h.known.Load() {
			if there, err := h.installed(ctx); err == nil && !there {
				return "The agents are uninstalled"
			}
		}
		if down, err := h.shutsDown(ctx); err == nil && down || h.down.Load() {
			return "The node shuts down"
		}
		if !time.Now().Before(until) {
			return ""
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(askAgain):
		}
	}
}

// Run returns once the agent may end that was told to: at once, or after it has handed over the
// node's routes, which takes the two delays. pass makes a pass begin.
func (h *Handover) Run(ctx context.Context, drain, withdraw time.Duration, pass func()) {
	why := h.why(ctx)
	if why == "" {
		return
	}
	h.logger.Info(why + ": routes are announced as to be left, then withdrawn")
	h.begun.Store(true)
	pass()
	select {
	case <-h.left:
		h.logger.Info("All routes are withdrawn")
		// The routers have to be told, and to obey.
		withdraw = max(withdraw, time.Second)
	case <-time.After(drain + Timeout):
		h.logger.Info("Routes are not all withdrawn: ending all the same")
		withdraw = 0
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(withdraw):
	case <-ctx.Done():
	}
}

// HasBegun reports whether the node is to withdraw everything.
func (h *Handover) HasBegun() bool { return h.begun.Load() }

// Withdrawn notes that no route is announced any more.
func (h *Handover) Withdrawn() {
	if h.HasBegun() {
		wake.Notify(h.left)
	}
}
