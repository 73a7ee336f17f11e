// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/test/isolated"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(holderRoot); root != "" {
		holdLock(root)
	}
	isolated.Main(m)
}

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

func smallConfig(root string) Config {
	return Config{
		PinRoot: root,
		Limits: forwarding.Limits{
			Frontends:      64,
			NodeTables:     8,
			EndpointTables: 8,
			Endpoints:      256,
			VIPs:           64,
			SourceRanges:   64,
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

func apply(t testing.TB, d *Dataplane, ops ...forwarding.Op) {
	t.Helper()
	if err := applyAll(d, ops); err != nil {
		t.Fatal(err)
	}
}

func applyAll(d *Dataplane, ops []forwarding.Op) error {
	for _, op := range ops {
		if err := d.Apply(op); err != nil {
			return err
		}
	}
	return nil
}
