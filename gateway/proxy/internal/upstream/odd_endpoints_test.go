// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestResettingEndpointIsLeftOut checks ejection of an endpoint that resets streams, and retries if refused.
func TestResettingEndpointIsLeftOut(t *testing.T) {
	const ejectAfter, requests = 3, 200
	for _, test := range []struct {
		code http2.ErrCode
		// failed counts failed requests, reset the streams that the endpoint received.
		failed, reset int
	}{
		{http2.ErrCodeInternal, ejectAfter, ejectAfter},
		{http2.ErrCodeCancel, ejectAfter, ejectAfter},
		{http2.ErrCodeEnhanceYourCalm, ejectAfter, ejectAfter},
		{http2.ErrCodeRefusedStream, 0, refusals * ejectAfter},
	} {
		t.Run(test.code.String(), func(t *testing.T) {
			t.Parallel()
			odd := (&frames{answer: resets(test.code)}).start(t)
			settings := settings()
			settings.Balance.EjectAfter, settings.Balance.EjectFor, settings.Balance.EjectForMost = ejectAfter, time.Hour, time.Hour
			// At most half of the endpoints are ejected.
			backend := over(settings, odd, (&frames{answer: isFine}).start(t), (&frames{answer: isFine}).start(t))
			failed := 0
			for range requests {
				if _, _, _, err := send(t, backend, newRequest(t, http.MethodGet, ""), &Policy{}); err != nil {
					failed++
				}
			}
			if reset := int(odd.requests.Load()); failed != test.failed || reset != test.reset {
				t.Errorf("%d of %d requests failed, and the endpoint reset %d; want %d and %d", failed, requests, reset, test.failed, test.reset)
			}
		})
	}
}

// TestSettingsHeldBack checks that SETTINGS within streamLimitTimeout limit the streams sent; later,
// refused requests are retried up to refusals times.
func TestSettingsHeldBack(t *testing.T) {
	for late, isAwaited := range map[time.Duration]bool{50 * time.Millisecond: true, 500 * time.Millisecond: false} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			var surplus atomic.Int32
			var mutex sync.Mutex
			taken := map[int32]int{}
			few := &frames{late: late, settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 1}}}
			few.answer = func(c *framesConn, stream uint32) {
				mutex.Lock()
				defer mutex.Unlock()
				if taken[c.number] > 0 {
					surplus.Add(1)
					go resets(http2.ErrCodeRefusedStream)(c, stream)
					return
				}
				taken[c.number]++
				time.AfterFunc(10*time.Millisecond, func() {
					mutex.Lock()
					taken[c.number]--
					mutex.Unlock()
					isFine(c, stream)
				})
			}
			backend := over(settings(), few.start(t))
			errs := make([]error, refusals)
			var group sync.WaitGroup
			for i := range errs {
				group.Go(func() { _, _, _, errs[i] = send(t, backend, newRequest(t, http.MethodGet, ""), &Policy{}) })
			}
			group.Wait()
			if failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(failed) > 0 {
				t.Errorf("%d of %d requests failed: %v", len(failed), len(errs), failed[0])
			}
			if isAwaited && surplus.Load() > 0 {
				t.Errorf("%d streams above the limit of the endpoint", surplus.Load())
			} else if !isAwaited && surplus.Load() == 0 {
				t.Error("no stream was refused: the test case is invalid")
			}
		})
	}
}
