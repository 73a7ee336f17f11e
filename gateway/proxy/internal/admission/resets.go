// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"time"

	"golang.org/x/time/rate"
)

// A connection may cancel resetBurst requests, and resetRate more per second. A reset costs 13 bytes and frees
// a stream at once, so MaxStreams does not limit it (CVE-2023-44487).
const (
	resetBurst = 200
	resetRate  = 20
)

// Reset counts a canceled request and reports an excess. Trusted proxies are exempt, because they carry many
// clients.
func (c *Connection) Reset(now time.Time) (excess bool) {
	if c == nil {
		return false
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	// Closing a connection cancels all its requests.
	if c.shared || c.ended {
		return false
	}
	// Allocated lazily, because most clients reset nothing.
	if c.resets == nil {
		c.resets = rate.NewLimiter(resetRate, resetBurst)
	}
	return !c.resets.AllowN(now, 1)
}
