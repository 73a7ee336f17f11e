// SPDX-License-Identifier: Apache-2.0

package bgp

import "time"

// firstPause is the pause after the first of a row of attempts to connect.
const firstPause = 250 * time.Millisecond

// retryPause is the time from the last attempt to connect until the next one, after so many
// attempts of a row. It doubles with each, up to settled, the peer's ConnectRetryTime: a router
// that starts again is back soon, and one that refuses is not asked often. Jitter, from 0 up to
// 1, takes a quarter of it at most (RFC 4271, section 10).
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
