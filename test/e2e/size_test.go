// SPDX-License-Identifier: Apache-2.0

//go:build e2e && !long

package e2e

import "time"

// Sizes for CI; the build tag long selects the full sizes.
const (
	heldUDPFlows = 8192
	floodTime    = 8 * time.Second
	// splitConnections makes the weights visible within splitTolerance.
	splitConnections = 4000
	// everyStep enables steps with long waits.
	everyStep = false
)

// scalingSteps are consecutive numbers of pods.
var scalingSteps = []int{12, 4}
