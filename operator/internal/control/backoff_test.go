// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"
	"time"
)

func TestBackoffBoundsWrites(t *testing.T) {
	for _, test := range []struct {
		name          string
		every, during time.Duration
		least, most   int
	}{
		{"state that flaps every second for an hour", time.Second, time.Hour, 15, 9 + int(time.Hour/MaxBackoff)},
		{"a hundred changes, one every seven seconds", 7 * time.Second, 700 * time.Second, 8, 11},
		{"a change after a stable time", 3 * MaxBackoff, 30 * MaxBackoff, 10, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			var backoff Backoff
			writes, start := 0, time.Unix(1000, 0)
			for after := time.Duration(0); after < test.during; after += test.every {
				if backoff.Wait(start.Add(after)) == 0 {
					backoff.RecordWrite(start.Add(after))
					writes++
				}
			}
			if writes < test.least || writes > test.most {
				t.Errorf("%d writes, want %d to %d", writes, test.least, test.most)
			}
		})
	}
}

// The pause ends even if the state does not change again, so that the last state is written.
func TestBackoffResets(t *testing.T) {
	var backoff Backoff
	now := time.Unix(1000, 0)
	backoff.RecordWrite(now)
	if wait := backoff.Wait(now); wait != minBackoff {
		t.Errorf("Wait = %s, want %s", wait, minBackoff)
	}
	if wait := backoff.Wait(now.Add(minBackoff)); wait != 0 {
		t.Errorf("Wait = %s after the pause", wait)
	}
}
