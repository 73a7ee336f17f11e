// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
	"github.com/millrace-lb/millrace/test/isolated"
)

func TestMain(m *testing.M) { isolated.Main(m) }

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
