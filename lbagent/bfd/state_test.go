// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/engine"
)

// Sessions are handed over even if the file system was filled since the start of the process.
func TestSaveWithoutRoom(t *testing.T) {
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatalf("mount a tmpfs (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Error(err)
		}
	})
	path, now := filepath.Join(directory, "sessions.json"), time.Now()
	var sessions []engine.Saved
	for range 64 {
		sessions = append(sessions, engine.Saved{
			Peer:    control.Peer{Name: strings.Repeat("x", 63)},
			Session: bfd.Saved{Discriminator: 1, Peer: bfd.Packet{MyDiscriminator: 4e9, YourDiscriminator: 4e9}, Since: now},
		})
	}
	// A restarted process, as after a crash, keeps the preallocated file.
	for range 2 {
		if err := reserve(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("fill the file system: error %v, want ENOSPC", err)
		}
	}
	if err := save(path, sessions, now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	loaded, err := load(path, now)
	if err != nil || len(loaded) != len(sessions) || loaded[0].Peer != sessions[0].Peer {
		t.Errorf("loaded %d sessions, want %d: %v", len(loaded), len(sessions), err)
	}
}
