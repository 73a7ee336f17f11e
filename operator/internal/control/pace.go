// SPDX-License-Identifier: Apache-2.0

package control

import "time"

// LongestPace is the longest pause between writes of a state that keeps changing.
const LongestPace = 5 * time.Minute

const firstPace = time.Second

// A Pace bounds writes of a state that may flap. A first change is written at once, further ones after
// pauses that double up to LongestPace. After twice that time without a write, it starts again.
type Pace struct {
	last  time.Time
	pause time.Duration
}

// Wait returns how long a write must wait, or 0.
func (p *Pace) Wait(now time.Time) time.Duration {
	return max(0, p.pause-now.Sub(p.last))
}

// Wrote records a write.
func (p *Pace) Wrote(now time.Time) {
	if p.pause == 0 || now.Sub(p.last) >= 2*LongestPace {
		p.pause = firstPace
	} else {
		p.pause = min(2*p.pause, LongestPace)
	}
	p.last = now
}
