// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked is returned when another process holds the lock of the data plane.
var ErrLocked = errors.New("another agent of this node holds the data plane")

// lockInterval is the polling interval for a lock held by another process.
const lockInterval = 100 * time.Millisecond

// Lock acquires exclusive access to the data plane below pinRoot: two writers would undo each other's
// changes. It locks the directory itself (flock), because a BPF file system has no files. The kernel releases
// the lock when the process ends.
//
// Lock waits until ctx is done, and then returns ErrLocked; it calls waits once if it has to wait. Close the
// lock after the data plane.
func Lock(ctx context.Context, pinRoot string, waits func()) (io.Closer, error) {
	for first := true; ; first = false {
		lock, err := tryLock(pinRoot)
		if err == nil || !errors.Is(err, ErrLocked) {
			return lock, err
		}
		if first {
			waits()
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockInterval):
		}
	}
}

func tryLock(pinRoot string) (io.Closer, error) {
	if err := os.MkdirAll(pinRoot, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory %s: %w; is a bpf file system mounted there?", pinRoot, err)
	}
	directory, err := os.Open(pinRoot)
	if err != nil {
		return nil, fmt.Errorf("open pin directory: %w", err)
	}
	if err := lockDirectory(directory, pinRoot); err != nil {
		return nil, errors.Join(err, directory.Close())
	}
	return directory, nil
}

func lockDirectory(directory *os.File, pinRoot string) error {
	err := unix.Flock(int(directory.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", pinRoot, ErrLocked)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", pinRoot, err)
	}
	locked, err := directory.Stat()
	if err != nil {
		return fmt.Errorf("stat the locked directory: %w", err)
	}
	// Cleanup may have removed the directory in between, which makes the lock ineffective.
	present, err := os.Stat(pinRoot)
	if err != nil || !os.SameFile(locked, present) {
		return fmt.Errorf("lock %s, which is being removed: %w", pinRoot, ErrLocked)
	}
	return nil
}
