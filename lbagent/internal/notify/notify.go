// SPDX-License-Identifier: Apache-2.0

// Package notify provides coalescing notification channels and waits for which zero means none.
package notify

import (
	"context"
	"time"
)

// Signal sends without blocking. A channel with capacity one coalesces notifications.
func Signal(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// Forward calls act for each value of the channel until ctx is done and returns its error.
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

// Soonest returns the shortest non-zero wait, or zero.
func Soonest(waits ...time.Duration) (soonest time.Duration) {
	for _, wait := range waits {
		if wait != 0 && (soonest == 0 || wait < soonest) {
			soonest = wait
		}
	}
	return soonest
}
