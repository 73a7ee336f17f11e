// SPDX-License-Identifier: Apache-2.0

package l2

import "time"

// Limits of what one interface does for those that ask. Each host that sends to a VIP asks once, and
// again each half minute. What an answer costs is a packet as large as the question.
const (
	// perVIP are the answers for one VIP each second, perInterface what an interface reads each second,
	// others' questions included. What comes beyond waits in the socket, which drops what it cannot hold.
	perVIP, perInterface = 500, 5000
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
