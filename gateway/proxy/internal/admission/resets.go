// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"time"

	"golang.org/x/time/rate"
)

// A connection may take back resetBurst requests before their answers are complete, and resetRate
// more each second. A reset costs the client 13 bytes. It may cost us a connection to the backend,
// and it makes room for the next request at once, so that MaxStreams bounds nothing
// (CVE-2023-44487).
const (
	resetBurst = 200
	resetRate  = 20
)

// Reset says that the client has taken a request back, and reports whether those are too many.
// Behind a proxy in front they are of many clients, so there they are never too many.
func (c *Connection) Reset(now time.Time) (excess bool) {
	if c == nil {
		return false
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	// The end of a connection ends all its requests.
	if c.shared || c.ended {
		return false
	}
	// Most clients reset nothing.
	if c.resets == nil {
		c.resets = rate.NewLimiter(resetRate, resetBurst)
	}
	return !c.resets.AllowN(now, 1)
}
