// SPDX-License-Identifier: Apache-2.0

// Package console is what the initial process of a kernel under test says on its console
// to whoever started the machine.
package console

const (
	// Mark begins a line that is meant for the starter; all others are the tests' output.
	Mark = "millrace-kernels: "
	// Passed begins the outcome of a package whose tests pass; its name and its time follow.
	Passed = "ok   "
	// Failed begins that of a package whose tests fail.
	Failed = "FAIL "
	// Done reports whether all tests have been run.
	Done = "done"
)
