// SPDX-License-Identifier: Apache-2.0

package lbagent

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
	// leaveTimeout bounds how much longer than its delays a departure takes. It ends before the
	// grace period of the pod.
	leaveTimeout = 5 * time.Second
)

// ending tells the end of an agent after which none follows for a while from its restart. An agent
// that restarts leaves its routes, which routers keep. One that is uninstalled, or whose node shuts
// down, hands them over first.
type ending struct {
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

func newEnding(installed, shutsDown func(ctx context.Context) (bool, error), logger logr.Logger) *ending {
	return &ending{installed: installed, shutsDown: shutsDown, logger: logger, left: make(chan struct{}, 1)}
}

// learn looks for the DaemonSet until there is an answer.
func (e *ending) learn(ctx context.Context) error {
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		there, err := e.installed(ctx)
		if err == nil {
			e.known.Store(there)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// see notes whether the node shuts down, as the last pass saw it.
func (e *ending) see(shutsDown bool) {
	if e != nil {
		e.down.Store(shutsDown)
	}
}

// why returns why no agent follows this one, as a sentence; empty where one does. Without an
// answer one does.
func (e *ending) why(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for until := time.Now().Add(lookAgain); ; {
		if e.known.Load() {
			if there, err := e.installed(ctx); err == nil && !there {
				return "The agents are uninstalled"
			}
		}
		if down, err := e.shutsDown(ctx); err == nil && down || e.down.Load() {
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

// end returns once the agent may end that was told to: at once, or after it has handed over the
// node's routes, which takes the two delays. wake makes a pass begin.
func (e *ending) end(ctx context.Context, drain, withdraw time.Duration, wake func()) {
	why := e.why(ctx)
	if why == "" {
		return
	}
	e.logger.Info(why + ": routes are announced as to be left, then withdrawn")
	e.begun.Store(true)
	wake()
	select {
	case <-e.left:
		e.logger.Info("All routes are withdrawn")
		// The routers have to be told, and to obey.
		withdraw = max(withdraw, time.Second)
	case <-time.After(drain + leaveTimeout):
		e.logger.Info("Routes are not all withdrawn: ending all the same")
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
func (e *ending) isBegun() bool { return e != nil && e.begun.Load() }

// withdrawn notes that no route is announced any more.
func (e *ending) withdrawn() {
	if e.isBegun() {
		wake.Notify(e.left)
	}
}
