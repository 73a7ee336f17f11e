// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// Routes are handed over only if the DaemonSet was deleted or the node shuts down.
func TestHandover(t *testing.T) {
	type answer struct {
		there bool
		err   error
	}
	yes, no, fails := answer{true, nil}, answer{false, nil}, answer{false, errors.New("injected")}
	for what, test := range map[string]struct {
		learned, asked answer
		// node is the Node's state at SIGTERM, later its state afterwards.
		node, later answer
		// seen is true if a pass saw that the node shuts down.
		seen  bool
		final bool
		// after is the duration of the check.
		after time.Duration
	}{
		"restart":                                {yes, yes, no, no, false, false, successorWindow},
		"uninstalled":                            {yes, no, no, no, false, true, 0},
		"API server unavailable":                 {yes, fails, fails, fails, false, false, successorWindow},
		"DaemonSet not found":                    {no, no, no, no, false, false, successorWindow},
		"forbidden":                              {fails, fails, fails, fails, false, false, successorWindow},
		"API server unavailable, then forbidden": {fails, no, no, no, false, false, successorWindow},
		"shutdown":                               {yes, yes, yes, yes, false, true, 0},
		"shutdown, detected late":                {yes, yes, no, yes, false, true, 3 * successorInterval},
		"shutdown, detected before the API server became unavailable": {yes, fails, fails, fails, true, true, 0},
		"shutdown without a DaemonSet":                                {no, no, yes, yes, false, true, 0},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				current := test.learned
				began := time.Now()
				node := func(context.Context) (bool, error) {
					if time.Since(began) < 3*successorInterval {
						return test.node.there, test.node.err
					}
					return test.later.there, test.later.err
				}
				h := New(func(context.Context) (bool, error) { return current.there, current.err }, node, logr.Discard())
				h.SetShutdown(test.seen)
				learning, stop := context.WithTimeout(t.Context(), time.Minute)
				if err := h.FindDaemonSet(learning); (err == nil) != (test.learned.err == nil) {
					t.Errorf("FindDaemonSet returned %v", err)
				}
				stop()
				current = test.asked
				began = time.Now()
				h.Run(t.Context(), 5*time.Second, time.Second, func() {
					if !h.HasBegun() {
						t.Error("HasBegun is true too early")
					}
					go func() {
						time.Sleep(5 * time.Second)
						h.Withdrawn()
					}()
				})
				want := test.after
				if test.final {
					want += 6 * time.Second
				}
				if took := time.Since(began); took != want || h.HasBegun() != test.final {
					t.Errorf("finished after %s, begun: %t; want %s, %t", took, h.HasBegun(), want, test.final)
				}
			})
		})
	}
}

// The handover is bounded, even if the agent fails.
func TestHandoverIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := func(context.Context) (bool, error) { return false, nil }
		h := New(gone, func(context.Context) (bool, error) { return false, nil }, logr.Discard())
		h.found.Store(true)
		began := time.Now()
		h.Run(t.Context(), 5*time.Second, time.Second, func() {})
		if took := time.Since(began); took != 5*time.Second+Timeout {
			t.Errorf("finished after %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		h.Run(ctx, time.Hour, time.Hour, func() {})
	})
}
