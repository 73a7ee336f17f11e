// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

const (
	// askTimeout is how long an agent that is told to end asks whether another one follows.
	askTimeout = time.Second
	// leaveTimeout bounds how much longer than its delays a departure takes. It ends before the
	// grace period of the pod.
	leaveTimeout = 5 * time.Second
)

// uninstall tells the end of an agent after which none follows from its restart. An agent that
// restarts leaves its routes, which routers keep. One that is uninstalled hands them over first.
type uninstall struct {
	// installed reports whether the DaemonSet of the agents is there.
	installed func(ctx context.Context) (bool, error)
	logger    logr.Logger

	// known is true once the DaemonSet was seen: agents may also run in another way.
	known atomic.Bool
	// begun is true from when the node is to withdraw everything; left has a value once it has.
	begun atomic.Bool
	left  chan struct{}
}

func newUninstall(installed func(ctx context.Context) (bool, error), logger logr.Logger) *uninstall {
	return &uninstall{installed: installed, logger: logger, left: make(chan struct{}, 1)}
}

// learn looks for the DaemonSet until there is an answer.
func (u *uninstall) learn(ctx context.Context) error {
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		there, err := u.installed(ctx)
		if err == nil {
			u.known.Store(there)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// isFinal asks whether no agent follows this one. Without an answer one does.
func (u *uninstall) isFinal(ctx context.Context) bool {
	if !u.known.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	there, err := u.installed(ctx)
	return err == nil && !there
}

// end returns once the agent may end that was told to: at once, or after it has handed over the
// node's routes, which takes the two delays. wake makes a pass begin.
func (u *uninstall) end(ctx context.Context, drain, withdraw time.Duration, wake func()) {
	if !u.isFinal(ctx) {
		return
	}
	u.logger.Info("The agents are uninstalled: routes are announced as to be left, then withdrawn")
	u.begun.Store(true)
	wake()
	select {
	case <-u.left:
		u.logger.Info("All routes are withdrawn")
		// The routers have to be told, and to obey.
		withdraw = max(withdraw, time.Second)
	case <-time.After(drain + leaveTimeout):
		u.logger.Info("Routes are not all withdrawn: ending all the same")
		withdraw = 0
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(withdraw):
	case <-ctx.Done():
	}
}

// isBegun reports whether the node is to withdraw everything.
func (u *uninstall) isBegun() bool { return u != nil && u.begun.Load() }

// withdrawn notes that no route is announced any more.
func (u *uninstall) withdrawn() {
	if u.isBegun() {
		notify(u.left)
	}
}
