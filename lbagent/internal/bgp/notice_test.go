// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"testing"
	"testing/synctest"
	"time"
)

// Notifications are rate limited, except for a first burst, and the last change is notified.
func TestChangesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		told := 0
		drain := func() {
			synctest.Wait()
			select {
			case <-s.Changed():
				told++
			default:
			}
		}
		for n := range changeBurst {
			s.notify()
			if drain(); told != n+1 {
				t.Fatalf("%d of the first %d changes were reported immediately", told, n+1)
			}
		}
		const lasts = 10 * time.Second
		for range int(lasts / time.Millisecond) {
			s.notify()
			drain()
			time.Sleep(time.Millisecond)
		}
		if most := changeBurst + int(lasts/changePause) + 1; told > most || told < most-3 {
			t.Errorf("%d reports, want about %d", told, most)
		}
		time.Sleep(time.Second)
		drain()
		before := told
		s.notify()
		time.Sleep(changePause)
		if drain(); told != before+1 {
			t.Error("the last change was not reported")
		}
		if time.Sleep(time.Minute); s.notice.waits {
			t.Error("a change is pending although all were sent")
		}
	})
}
