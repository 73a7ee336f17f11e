// SPDX-License-Identifier: Apache-2.0

package l2

import "time"

// perInterface are the questions for VIPs of this node that an interface reads each second. What one host
// may ask is less (questions.c), so the others have room. What comes beyond waits in the socket, which
// has memory for a second of it, and drops what it cannot hold.
//
// VIPs have no limit of their own: whoever asks too often for one would take it from all others.
const (
	perInterface    = 5000
	roomPerQuestion = 1024
)

// bucket lets so much through each second, and as much at once.
type bucket struct {
	rate   float64
	left   float64
	filled time.Time
}

func newBucket(rate float64) bucket { return bucket{rate: rate, left: rate} }

// take reports whether one more may pass.
func (b *bucket) take(now time.Time) bool {
	if passed := now.Sub(b.filled).Seconds(); passed > 0 {
		b.left = min(b.rate, b.left+passed*b.rate)
		b.filled = now
	}
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
