// SPDX-License-Identifier: Apache-2.0

// Package shutdown hands over a node's routes before its agent ends without a successor: on an
// uninstallation or a shutdown of the node.
package shutdown

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

const (
	// askTimeout bounds the check whether another agent follows.
	askTimeout = time.Second
	// lookAgain is how long the check is repeated. The kubelet reports a shutdown while it already ends
	// pods, so the API server may learn of it late.
	lookAgain = 500 * time.Millisecond
	// askAgain is the interval of these checks.
	askAgain = 100 * time.Millisecond
	// Timeout is the maximum duration of a handover beyond its delays, within the pod's grace period.
	Timeout = 5 * time.Second
	// firstRetry and longestRetry bound the backoff of looking for the DaemonSet.
	firstRetry   = time.Second
	longestRetry = 30 * time.Second
)

// Handover distinguishes a shutdown from a restart of the agent. On a restart routers keep the routes; on a
// shutdown they are withdrawn first.
type Handover struct {
	// installed reports whether the agents' DaemonSet exists, shutsDown whether the Node is shutting down.
	installed, shutsDown func(ctx context.Context) (bool, error)
	logger               logr.Logger

	// known is true once the DaemonSet was seen; agents may also run without one.
	known atomic.Bool
	down  atomic.Bool
	// begun is true once the node must withdraw all routes; left receives a value when they are withdrawn.
	begun atomic.Bool
	left  chan struct{}
}

// New returns a Handover. installed reports whether the agents' DaemonSet exists, shutsDown whether the
// Node is shutting down.
func New(installed, shutsDown func(ctx context.Context) (bool, error), logger logr.Logger) *Handover {
	return &Handover{installed: installed, shutsDown: shutsDown, logger: logger, left: make(chan struct{}, 1)}
}

// Learn retries until it knows whether the DaemonSet exists.
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

// See records whether the node is shutting down according to the last pass.
func (h *Handover) See(shutsDown bool) { h.down.Store(shutsDown) }

// why returns the reason why no agent follows this one, or "". Errors count as a successor.
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

// Run returns when the agent may end: at once, or after the routes are withdrawn, which takes both delays.
// pass triggers a pass.
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
		// Routers need time to process the withdrawals.
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

// HasBegun reports whether the node must withdraw all routes.
func (h *Handover) HasBegun() bool { return h.begun.Load() }

// Withdrawn records that no route is announced any more.
func (h *Handover) Withdrawn() {
	if h.HasBegun() {
		wake.Notify(h.left)
	}
}
