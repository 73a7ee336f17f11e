// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestRepeatInterval(t *testing.T) {
	for name, test := range map[string]struct {
		rest        Pause
		least, most int
	}{
		// A call takes a second, a rest nine, and the wait for further changes 200 ms.
		"with a rest":    {func(took time.Duration) time.Duration { return 9 * took }, 5, 6},
		"without a rest": {NoPause, 45, 51},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				changed := make(chan struct{}, 1)
				calls := 0
				ended := make(chan error, 1)
				go func() {
					ended <- repeat(ctx, changed, test.rest, func() error {
						calls++
						time.Sleep(time.Second)
						return nil
					})
				}()
				for range 600 {
					time.Sleep(100 * time.Millisecond)
					select {
					case changed <- struct{}{}:
					default:
					}
				}
				if calls < test.least || calls > test.most {
					t.Errorf("%d calls in a minute, want %d to %d", calls, test.least, test.most)
				}
				before := calls
				select {
				case changed <- struct{}{}:
				default:
				}
				time.Sleep(time.Minute)
				if calls == before || calls > before+2 {
					t.Errorf("after the last change: %d calls, %d before", calls, before)
				}
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("ended with %v", err)
				}
			})
		})
	}
}
