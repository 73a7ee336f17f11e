// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// isolated names the process that has a network namespace of its own.
const isolated = "MILLRACE_TEST_ISOLATED"

// TestMain runs the tests, which need root, in a network namespace of their own.
// So does each worker of a fuzz test, which inherits the environment.
func TestMain(m *testing.M) {
	self := strconv.Itoa(os.Getpid())
	if os.Getenv(isolated) == self {
		os.Exit(m.Run())
	}
	if err := isolate(self); err != nil {
		fmt.Fprintf(os.Stderr, "run the tests in a network namespace of their own: %v; they need root\n", err)
		os.Exit(1)
	}
}

// isolate starts the program anew in a new namespace; it returns only on failure.
func isolate(self string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := os.Setenv(isolated, self); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}
