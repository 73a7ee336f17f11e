// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// isolated is set in the process that runs the tests.
const isolated = "MILLRACE_TEST_ISOLATED"

// TestMain runs the tests, which need root, in mount and network namespaces of
// their own: whatever they leave behind is gone with the process.
func TestMain(m *testing.M) {
	if os.Getenv(isolated) != "" {
		// ip(8) keeps its namespaces below /run.
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
			fmt.Fprintf(os.Stderr, "mount /run of the tests' own: %v\n", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig:    syscall.SIGKILL,
	}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "run the tests in namespaces of their own: %v; they need root\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// mountBPF mounts a bpf file system of the test and gives a pin root on it.
func mountBPF(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Fatalf("mount a bpf file system (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return filepath.Join(dir, "millrace")
}

// smallConfig is a data plane that is quick to make.
func smallConfig(root string) Config {
	return Config{
		PinRoot: root,
		Limits: program.Limits{
			Frontends:     64,
			Tables:        8,
			EndpointSlots: 8,
			Endpoints:     256,
			VIPs:          64,
		},
		Connections: 4096,
	}
}

func openDataplane(t testing.TB, cfg Config) *Dataplane {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func apply(t testing.TB, d *Dataplane, ops ...program.Op) {
	t.Helper()
	if err := d.Apply(ops); err != nil {
		t.Fatal(err)
	}
}
