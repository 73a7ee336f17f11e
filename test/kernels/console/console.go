// SPDX-License-Identifier: Apache-2.0

// Package console defines the console messages from the initial process of a tested kernel.
package console

const (
	// Mark starts a message; other lines are the tests' output.
	Mark = "millrace-kernels: "
	// Passed starts the result of a package, before its name and duration.
	Passed = "ok   "
	// Failed starts the result of a package with failures.
	Failed = "FAIL "
	// Done means that all tests were run.
	Done = "done"
)
