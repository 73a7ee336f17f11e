// SPDX-License-Identifier: Apache-2.0

package control

import "time"

// MaxBackoff is the longest pause between writes of a state that keeps changing.
const MaxBackoff = 5 * time.Minute

const minBackoff = time.Second

// A Backoff bounds writes of a state that may flap. A first change is written at once, further ones after
// pauses that double up to MaxBackoff. After twice that time without a write, it starts again.
type Backoff struct {
	last  time.Time
	pause time.Duration
}

// Wait returns how long a write must wait, or 0.
func (b *Backoff) Wait(now time.Time) time.Duration {
	return max(0, b.pause-now.Sub(b.last))
}

// RecordWrite records a write.
func (b *Backoff) RecordWrite(now time.Time) {
	if b.pause == 0 || now.Sub(b.last) >= 2*MaxBackoff {
		b.pause = minBackoff
	} else {
		b.pause = min(2*b.pause, MaxBackoff)
	}
	b.last = now
}
