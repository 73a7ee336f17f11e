// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package conformance

import (
	"maps"
	"slices"
)

// expectedFailures are tests that do not pass yet, each with the reason. They are not run.
var expectedFailures = map[string]string{}

// skipped are the names of the tests that are not run.
func skipped() []string { return slices.Sorted(maps.Keys(expectedFailures)) }
