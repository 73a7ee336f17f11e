// SPDX-License-Identifier: Apache-2.0

//go:build e2e && race

package operator_test

// asTheTest are the flags of go build for the operator, matching those of the test: with the race detector.
var asTheTest = []string{"-race"}
