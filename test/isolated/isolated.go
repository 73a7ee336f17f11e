// SPDX-License-Identifier: Apache-2.0

// Package isolated runs tests as root in their own mount and network namespaces, which are deleted with the
// process.
package isolated

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// process is the PID with the namespaces. Child processes, such as fuzz workers, create their own.
	process = "MILLRACE_TEST_ISOLATED"
	// test is the test to run in this process.
	test = "MILLRACE_TEST_ISOLATED_TEST"
)

// Main is a TestMain that isolates all tests of a package.
func Main(m *testing.M) {
	self := strconv.Itoa(os.Getpid())
	if os.Getenv(process) == self {
		os.Exit(m.Run())
	}
	if err := again(self); err != nil {
		fmt.Fprintf(os.Stderr, "run the tests in new namespaces: %v; they need root\n", err)
		os.Exit(1)
	}
}

// again re-executes the program in new namespaces; it returns only on failure.
func again(self string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := os.Setenv(process, self); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

// Thread moves the test's thread into a new network namespace. Both end with the test.
func Thread(t *testing.T) {
	t.Helper()
	// The thread is not unlocked, so that it ends with the goroutine.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace, which needs root: %v", err)
	}
}

// Test isolates one test by running it again in a new process, in which Test returns true. If it returns
// false, the test is finished.
func Test(t *testing.T) bool {
	t.Helper()
	if os.Getenv(test) == t.Name() {
		return true
	}
	pattern := "^" + t.Name() + "$"
	if _, subtests, chosen := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); chosen {
		pattern += "/" + subtests
	}
	args := []string{"-test.run", pattern}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	if deadline, limited := t.Deadline(); limited {
		args = append(args, "-test.timeout", time.Until(deadline).String())
	}
	flag.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), test+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig:    syscall.SIGKILL,
	}
	// Pdeathsig applies to the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in new namespaces, which needs root: %v\n%s", err, out)
	} else {
		t.Logf("in new namespaces:\n%s", out)
	}
	return false
}
