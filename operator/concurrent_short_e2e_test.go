// SPDX-License-Identifier: Apache-2.0

//go:build e2e && !long

package operator_test

import "time"

const (
	// servicesAtOnce is the number of Services of each of four customers: few, for CI.
	servicesAtOnce = 30
	atOnceFor      = 5 * time.Second
)
