// SPDX-License-Identifier: Apache-2.0

//go:build e2e && race

package operator_test

// asTheTest are flags of go build by which the operator is built as the test is: with the race
// detector.
var asTheTest = []string{"-race"}
