// SPDX-License-Identifier: Apache-2.0

// Package wake has what parts of an agent wake each other with: channels of which one value says as
// much as several, and waits of which zero means none.
package wake

import (
	"context"
	"time"
)

// Notify sends without waiting. A channel with a buffer of one loses no wish to wake.
func Notify(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// Forward calls act for every value of a channel until ctx is done, and returns its error.
func Forward(ctx context.Context, channel <-chan struct{}, act func()) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-channel:
			act()
		}
	}
}

// Soonest returns the shortest of waits, of which zero means none.
func Soonest(waits ...time.Duration) (soonest time.Duration) {
	for _, wait := range waits {
		if wait != 0 && (soonest == 0 || wait < soonest) {
			soonest = wait
		}
	}
	return soonest
}
