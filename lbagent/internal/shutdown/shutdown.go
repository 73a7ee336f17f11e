// SPDX-License-Identifier: Apache-2.0

// Package shutdown hands over a node's routes before its agent ends without a successor: on an
// uninstallation or a shutdown of the node.
package shutdown

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

const (
	// successorTimeout bounds the check whether another agent follows.
	successorTimeout = time.Second
	// successorWindow is how long the check is repeated. The kubelet reports a shutdown while it already ends
	// pods, so the API server may learn of it late.
	successorWindow = 500 * time.Millisecond
	// successorInterval is the interval of these checks.
	successorInterval = 100 * time.Millisecond
	// Timeout is the maximum duration of a handover beyond its delays, within the pod's grace period.
	Timeout = 5 * time.Second
	// minRetry and maxRetry bound the backoff of looking for the DaemonSet.
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// Handover distinguishes a shutdown from a restart of the agent. On a restart routers keep the routes; on a
// shutdown they are withdrawn first.
type Handover struct {
	// installed reports whether the agents' DaemonSet exists, shutsDown whether the Node is shutting down.
	installed, shutsDown func(ctx context.Context) (bool, error)
	logger               logr.Logger

	// found is true once the DaemonSet was seen; agents may also run without one.
	found atomic.Bool
	down  atomic.Bool
	// begun is true once the node must withdraw all routes; left receives a value when they are withdrawn.
	begun     atomic.Bool
	withdrawn chan struct{}
}

// New returns a Handover. installed reports whether the agents' DaemonSet exists, shutsDown whether the
// Node is shutting down.
func New(installed, shutsDown func(ctx context.Context) (bool, error), logger logr.Logger) *Handover {
	return &Handover{installed: installed, shutsDown: shutsDown, logger: logger, withdrawn: make(chan struct{}, 1)}
}

// FindDaemonSet retries until it knows whether the DaemonSet exists.
func (h *Handover) FindDaemonSet(ctx context.Context) error {
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		there, err := h.installed(ctx)
		if err == nil {
			h.found.Store(there)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// SetShutdown records whether the node is shutting down according to the last pass.
func (h *Handover) SetShutdown(shutsDown bool) { h.down.Store(shutsDown) }

// reason returns the reason why no agent follows this one, or "". Errors count as a successor.
func (h *Handover) reason(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, successorTimeout)
	defer cancel()
	for until := time.Now().Add(successorWindow); ; {
		if h.found.Load() {
			if there, err := h.installed(ctx); err == nil && !there {
				return "The agents are uninstalled"
			}
		}
		if down, err := h.shutsDown(ctx); err == nil && down || h.down.Load() {
			return "The node is shutting down"
		}
		if !time.Now().Before(until) {
			return ""
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(successorInterval):
		}
	}
}

// Run returns when the agent may end: at once, or after the routes are withdrawn, which takes both delays.
// pass triggers a pass.
func (h *Handover) Run(ctx context.Context, drain, withdraw time.Duration, pass func()) {
	why := h.reason(ctx)
	if why == "" {
		return
	}
	h.logger.Info(why + ": routes are announced with GRACEFUL_SHUTDOWN, then withdrawn")
	h.begun.Store(true)
	pass()
	select {
	case <-h.withdrawn:
		h.logger.Info("All routes are withdrawn")
		// Routers need time to process the withdrawals.
		withdraw = max(withdraw, time.Second)
	case <-time.After(drain + Timeout):
		h.logger.Info("Not all routes are withdrawn: shutting down anyway")
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
		notify.Signal(h.withdrawn)
	}
}
