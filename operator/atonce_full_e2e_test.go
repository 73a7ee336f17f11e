// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import "time"

const (
	// servicesAtOnce is the number of Services of each of four customers, enough to keep both operators busy.
	servicesAtOnce = 500
	atOnceFor      = time.Minute
)
