// SPDX-License-Identifier: Apache-2.0

package bgp

import "time"

// firstPause follows the first failed connection attempt.
const firstPause = 250 * time.Millisecond

// retryPause returns the time between the last connection attempt and the next one. It doubles per attempt
// up to settled, the peer's ConnectRetryTime, so that a restarted router is reached soon and a refusing one
// is not flooded. jitter, from 0 to 1, shortens it by up to a quarter (RFC 4271, section 10).
func retryPause(attempts int, settled time.Duration, jitter float64) time.Duration {
	if attempts == 0 {
		return 0
	}
	pause := firstPause
	for ; attempts > 1 && pause < settled; attempts-- {
		pause *= 2
	}
	return time.Duration(float64(min(pause, settled)) * (1 - jitter/4))
}
