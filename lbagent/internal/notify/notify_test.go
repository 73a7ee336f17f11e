// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Pending values coalesce, and none after a receive is lost.
func TestForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		channel := make(chan struct{}, 1)
		acts := 0
		Signal(channel)
		Signal(channel)
		ended := make(chan error, 1)
		go func() { ended <- Forward(ctx, channel, func() { acts++ }) }()
		synctest.Wait()
		if acts != 1 {
			t.Errorf("%d calls for two simultaneous values, want 1", acts)
		}
		Signal(channel)
		synctest.Wait()
		if acts != 2 {
			t.Errorf("%d calls, want 2", acts)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("returned %v, want context.Canceled", err)
		}
	})
}

func TestSoonest(t *testing.T) {
	for _, test := range []struct {
		waits []time.Duration
		want  time.Duration
	}{
		{nil, 0},
		{[]time.Duration{0, 0}, 0},
		{[]time.Duration{0, time.Second}, time.Second},
		{[]time.Duration{time.Minute, 0, time.Second}, time.Second},
	} {
		if got := Soonest(test.waits...); got != test.want {
			t.Errorf("Soonest(%v) = %s, want %s", test.waits, got, test.want)
		}
	}
}
