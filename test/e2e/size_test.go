// SPDX-License-Identifier: Apache-2.0

//go:build e2e && !long

package e2e

import "time"

// The sizes that CI has time for. Those behind the build tag long are the full ones.
const (
	heldUDPFlows = 8192
	floodTime    = 8 * time.Second
	// splitConnections is so many that the weights must show within splitTolerance.
	splitConnections = 4000
	// everyStep is whether tests also take the steps that wait for long.
	everyStep = false
)

// scalingSteps are how many pods there are, one after another.
var scalingSteps = []int{12, 4}
