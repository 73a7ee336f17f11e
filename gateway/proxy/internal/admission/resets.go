// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"time"

	"golang.org/x/time/rate"
)

// A connection may cancel resetBurst requests, and resetRate more per second, before their responses are
// complete. A reset costs the client 13 bytes, but may cost the proxy a backend connection. It frees a
// stream at once, so that MaxStreams does not limit it (CVE-2023-44487).
const (
	resetBurst = 200
	resetRate  = 20
)

// Reset counts a canceled request and reports whether there are too many. Connections of trusted proxies
// are exempt, because they carry requests of many clients.
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
