// SPDX-License-Identifier: Apache-2.0

//go:build e2e && !long

package e2e

import "time"

// The sizes that CI has time for. Those behind the build tag long are the full ones.
const (
	heldUDPFlows = 16384
	// idleTime is longer than the half minute after which numbers alone are written.
	idleTime = 35 * time.Second
)

// scalingSteps are how many pods there are, one after another.
var scalingSteps = []int{10, 30, 6}
