// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
)

// A pass is alive while it progresses. A node is ready once its sessions were established, or after the
// grace period.
func TestHealth(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	h := New(clock)
	down := []bgp.Session{{Peer: "router", State: millracev1beta1.SessionActive}}
	up := []bgp.Session{{Peer: "router", State: millracev1beta1.SessionEstablished}}
	expect := func(what string, alive, ready bool) {
		t.Helper()
		if gotAlive, gotReady := h.Alive(), h.Ready(); (gotAlive == nil) != alive || (gotReady == nil) != ready {
			t.Errorf("%s: Alive = %v, Ready = %v; want %t, %t", what, gotAlive, gotReady, alive, ready)
		}
	}
	expect("before the first pass", true, false)
	h.Begin(now)
	expect("in the first pass", true, false)
	now = now.Add(StuckAfter + time.Second)
	expect("in a stuck pass", false, false)
	h.End(now, nil, down)
	expect("session not established", true, false)
	now = now.Add(SessionGrace)
	expect("session down for a long time", true, true)
	h = New(clock)
	h.End(now, nil, up)
	expect("session established", true, true)
	h.End(now, nil, down)
	expect("session lost", true, true)
	h.End(now, errors.New("injected"), up)
	expect("pass failed", true, false)
}

// A pass that was already running does not count.
func TestAwaitPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(time.Now)
		h.Begin(time.Now())
		waited := make(chan error, 1)
		asks := 0
		go func() { waited <- h.AwaitPass(t.Context(), func() { asks++ }) }()
		synctest.Wait()
		h.End(time.Now(), nil, nil)
		synctest.Wait()
		if len(waited) > 0 || asks != 1 {
			t.Fatalf("the call did not wait for its own pass; %d passes requested", asks)
		}
		h.Begin(time.Now())
		synctest.Wait()
		if len(waited) > 0 {
			t.Fatal("the call returned before the end of the pass")
		}
		h.End(time.Now(), errors.New("injected"), nil)
		if err := <-waited; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.AwaitPass(ctx, func() {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a pass: %v", err)
		}
	})
}
