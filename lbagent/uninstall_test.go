// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// Only an agent whose DaemonSet was seen and is gone hands its routes over before it ends.
func TestEndOfAnAgent(t *testing.T) {
	type answer struct {
		there bool
		err   error
	}
	yes, no, fails := answer{true, nil}, answer{false, nil}, answer{false, errInjected}
	for what, test := range map[string]struct {
		learned, asked answer
		final          bool
	}{
		"restart":             {yes, yes, false},
		"uninstalled":         {yes, no, true},
		"API server away":     {yes, fails, false},
		"no such DaemonSet":   {no, no, false},
		"no right to ask":     {fails, fails, false},
		"away, then no right": {fails, no, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				current := test.learned
				u := newUninstall(func(context.Context) (bool, error) { return current.there, current.err }, logr.Discard())
				learning, stop := context.WithTimeout(t.Context(), time.Minute)
				if err := u.learn(learning); (err == nil) != (test.learned.err == nil) {
					t.Errorf("learning ended with %v", err)
				}
				stop()
				current = test.asked
				began := time.Now()
				u.end(t.Context(), 5*time.Second, time.Second, func() {
					if !u.isBegun() {
						t.Error("a pass begins too early")
					}
					go func() {
						time.Sleep(5 * time.Second)
						u.withdrawn()
					}()
				})
				want := time.Duration(0)
				if test.final {
					want = 6 * time.Second
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
		u := newUninstall(gone, logr.Discard())
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
	l.uninstall = newUninstall(nil, logr.Discard())
	mustPass(t, l, start)
	l.uninstall.begun.Store(true)
	if again := mustPass(t, l, start); !n.routes[vipOf(1)] || again == 0 || again > l.drainDelay {
		t.Errorf("routes %v, again in %s", n.routes, again)
	}
	for _, routes := range n.want.Routes {
		if got := routes[0].Communities; len(got) != 1 || got[0] != 0xffff0000 {
			t.Errorf("communities %x, want GRACEFUL_SHUTDOWN", got)
		}
	}
	if len(l.uninstall.left) != 0 {
		t.Error("said to be withdrawn before it is")
	}
	mustPass(t, l, start.Add(l.drainDelay))
	if n.routes[vipOf(1)] || len(l.uninstall.left) != 1 {
		t.Errorf("routes %v, said to be withdrawn: %d", n.routes, len(l.uninstall.left))
	}
	if len(n.state.Frontends) != 1 {
		t.Error("the maps do not forward any more")
	}
}
