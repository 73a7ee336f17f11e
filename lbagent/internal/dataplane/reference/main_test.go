// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// isolated names the process that has namespaces of its own.
const isolated = "MILLRACE_TEST_ISOLATED"

// TestMain runs the tests, which need root, in mount and network namespaces of their own.
func TestMain(m *testing.M) {
	flag.Parse()
	self := strconv.Itoa(os.Getpid())
	if os.Getenv(isolated) == self {
		os.Exit(m.Run())
	}
	if err := isolate(self); err != nil {
		fmt.Fprintf(os.Stderr, "run the tests in namespaces of their own: %v; they need root\n", err)
		os.Exit(1)
	}
}

// isolate starts the program anew in new namespaces; it returns only on failure.
func isolate(self string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := os.Setenv(isolated, self); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}
