// SPDX-License-Identifier: Apache-2.0

package l2

import "time"

// perInterface is the number of requests per second that the sockets of an interface read. A single host's
// limit is lower (l2_responder.c). Excess requests queue in the socket for up to a second and are then dropped
// by the kernel. There is no limit per VIP, because one host could exhaust it for all others.
const (
	perInterface     = 5000
	bufferPerRequest = 1024
)

// bucket is a token bucket with a burst of one second.
type bucket struct {
	rate   float64
	left   float64
	filled time.Time
}

func newBucket(rate float64) bucket { return bucket{rate: rate, left: rate} }

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
