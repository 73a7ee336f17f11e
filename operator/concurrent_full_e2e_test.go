// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import "time"

const (
	// servicesAtOnce keeps both operators busy; four customers have as many each.
	servicesAtOnce = 500
	atOnceFor      = time.Minute
)
