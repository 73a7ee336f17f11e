// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package conformance

import (
	"maps"
	"slices"
)

// expectedFailures maps tests that are skipped to the reason.
var expectedFailures = map[string]string{}

func skipped() []string { return slices.Sorted(maps.Keys(expectedFailures)) }
