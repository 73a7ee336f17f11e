// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long && !race

package lbagent

// asTheTest are flags of go build by which the operator is built as the test is.
var asTheTest []string
