// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
)

// Only an agent whose DaemonSet was seen and is gone, or whose node shuts down, hands its routes
// over before it ends.
func TestEndOfAnAgent(t *testing.T) {
	type answer struct {
		there bool
		err   error
	}
	yes, no, fails := answer{true, nil}, answer{false, nil}, answer{false, errInjected}
	for what, test := range map[string]struct {
		learned, asked answer
		// node is what the Node says when the agent is told to end, later what it says then.
		node, later answer
		// seen is true where a pass saw that the node shuts down.
		seen  bool
		final bool
		// after is how long the agent asks.
		after time.Duration
	}{
		"restart":             {yes, yes, no, no, false, false, lookAgain},
		"uninstalled":         {yes, no, no, no, false, true, 0},
		"API server away":     {yes, fails, fails, fails, false, false, lookAgain},
		"no such DaemonSet":   {no, no, no, no, false, false, lookAgain},
		"no right to ask":     {fails, fails, fails, fails, false, false, lookAgain},
		"away, then no right": {fails, no, no, no, false, false, lookAgain},
		"shutdown":            {yes, yes, yes, yes, false, true, 0},
		"shutdown, told late": {yes, yes, no, yes, false, true, 3 * askAgain},
		"shutdown, seen by a pass before the API server was away": {yes, fails, fails, fails, true, true, 0},
		"shutdown without a DaemonSet":                            {no, no, yes, yes, false, true, 0},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				current := test.learned
				began := time.Now()
				node := func(context.Context) (bool, error) {
					if time.Since(began) < 3*askAgain {
						return test.node.there, test.node.err
					}
					return test.later.there, test.later.err
				}
				u := newEnding(func(context.Context) (bool, error) { return current.there, current.err }, node, logr.Discard())
				u.see(test.seen)
				learning, stop := context.WithTimeout(t.Context(), time.Minute)
				if err := u.learn(learning); (err == nil) != (test.learned.err == nil) {
					t.Errorf("learning ended with %v", err)
				}
				stop()
				current = test.asked
				began = time.Now()
				u.end(t.Context(), 5*time.Second, time.Second, func() {
					if !u.isBegun() {
						t.Error("a pass begins too early")
					}
					go func() {
						time.Sleep(5 * time.Second)
						u.withdrawn()
					}()
				})
				want := test.after
				if test.final {
					want += 6 * time.Second
				}
				if took := time.Since(began); took != want || u.isBegun() != test.final {
					t.Errorf("ended after %s, handed over: %t; want %s, %t", took, u.isBegun(), want, test.final)
				}
			})
		})
	}
}

// The end does not wait for ever, nor for an agent that fails meanwhile.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := func(context.Context) (bool, error) { return false, nil }
		u := newEnding(gone, func(context.Context) (bool, error) { return false, nil }, logr.Discard())
		u.known.Store(true)
		began := time.Now()
		u.end(t.Context(), 5*time.Second, time.Second, func() {})
		if took := time.Since(began); took != 5*time.Second+leaveTimeout {
			t.Errorf("ended after %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		u.end(ctx, time.Hour, time.Hour, func() {})
	})
}

// A node that is uninstalled withdraws a VIP that no other node can take, after the drain delay.
func TestUninstalledNodeWithdraws(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	objects.LBNodes = objects.LBNodes[:1]
	addService(objects, 1, false, 1, 0)
	l := newLoop(n, objects)
	l.ending = newEnding(nil, nil, logr.Discard())
	mustPass(t, l, start)
	l.ending.begun.Store(true)
	if again := mustPass(t, l, start); !n.routes[vipOf(1)] || again == 0 || again > l.drainDelay {
		t.Errorf("routes %v, again in %s", n.routes, again)
	}
	for _, routes := range n.want.Routes {
		if got := routes[0].Communities; len(got) != 1 || got[0] != 0xffff0000 {
			t.Errorf("communities %x, want GRACEFUL_SHUTDOWN", got)
		}
	}
	if len(l.ending.left) != 0 {
		t.Error("said to be withdrawn before it is")
	}
	mustPass(t, l, start.Add(l.drainDelay))
	if n.routes[vipOf(1)] || len(l.ending.left) != 1 {
		t.Errorf("routes %v, said to be withdrawn: %d", n.routes, len(l.ending.left))
	}
	if len(n.state.Frontends) != 1 {
		t.Error("the maps do not forward any more")
	}
}

// A node whose Node says that it shuts down departs, be there an operator or not. Its agent knows
// by then why it is told to end.
func TestNodeThatShutsDownDeparts(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 1)
	l := newLoop(n, objects)
	l.ending = newEnding(nil, nil, logr.Discard())
	mustPass(t, l, start)
	objects.Node = objects.Node.DeepCopy()
	objects.Node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "node is shutting down",
	}}
	mustPass(t, l, start)
	for _, routes := range n.want.Routes {
		if got := routes[0].Communities; len(got) != 1 || got[0] != 0xffff0000 {
			t.Errorf("communities %x, want GRACEFUL_SHUTDOWN", got)
		}
	}
	if !n.routes[vipOf(1)] || !l.ending.down.Load() {
		t.Errorf("routes %v, known to shut down: %t", n.routes, l.ending.down.Load())
	}
	mustPass(t, l, start.Add(l.drainDelay))
	if n.routes[vipOf(1)] || len(n.state.Frontends) != 1 {
		t.Errorf("routes %v, %d frontends", n.routes, len(n.state.Frontends))
	}
	// A cordoned node waits for its LBNode, as others see that, too.
	objects.Node = objects.Node.DeepCopy()
	objects.Node.Status.Conditions = nil
	objects.Node.Spec.Unschedulable = true
	mustPass(t, l, start.Add(2*l.drainDelay))
	mustPass(t, l, start.Add(3*l.drainDelay))
	if !n.routes[vipOf(1)] || l.ending.down.Load() {
		t.Errorf("routes %v, known to shut down: %t", n.routes, l.ending.down.Load())
	}
}
