// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import "time"

const (
	heldUDPFlows     = 65536
	floodTime        = 20 * time.Second
	splitConnections = 10_000
	everyStep        = true
)

var scalingSteps = []int{10, 20, 30, 18, 6}
