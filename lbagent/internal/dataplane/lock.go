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

// ErrLocked means that another process has the data plane.
var ErrLocked = errors.New("another agent of this node has the data plane")

// lockInterval is how often a lock that another process has is asked for.
const lockInterval = 100 * time.Millisecond

// Lock keeps other processes from the data plane below pinRoot: of two that write the same maps,
// each takes out what the other one puts in. The lock is the directory's own (flock), since a BPF
// file system has no files. The kernel gives it back when the process ends, however that ends.
//
// Lock waits until ctx is done, and returns ErrLocked then; waits is called once where it has to.
// Close the lock after the data plane.
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
		return fmt.Errorf("look at the locked directory: %w", err)
	}
	// Cleanup may have removed it in between: the lock of a directory that is gone keeps nobody out.
	present, err := os.Stat(pinRoot)
	if err != nil || !os.SameFile(locked, present) {
		return fmt.Errorf("lock %s, which is being removed: %w", pinRoot, ErrLocked)
	}
	return nil
}
