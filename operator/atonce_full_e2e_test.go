// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import "time"

const (
	// servicesAtOnce are the Services of each of four customers: as many as take both operators some time.
	servicesAtOnce = 500
	atOnceFor      = time.Minute
)
