// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// isolated names the process that has namespaces of its own.
const isolated = "MILLRACE_TEST_ISOLATED"

// TestMain runs the tests, which need root, in mount and network namespaces of
// their own: whatever they leave behind is gone with the process.
func TestMain(m *testing.M) {
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
	// ip(8) keeps its namespaces below /run.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := os.Setenv(isolated, self); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
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
			SourceRanges:  64,
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
