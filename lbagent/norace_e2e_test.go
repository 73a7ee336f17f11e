// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long && !race

package lbagent

var asTheTest []string
