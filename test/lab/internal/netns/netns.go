// SPDX-License-Identifier: Apache-2.0

// Package netns creates named network namespaces and runs functions in them.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// directory contains the names. It is not iproute2's /run/netns, because the first `ip netns add` binds
// that directory onto itself, so that each namespace is mounted twice and the lower mount cannot be
// removed.
const directory = "/run/millrace-lab"

// ErrNotExist means that a network namespace does not exist.
var ErrNotExist = errors.New("network namespace does not exist")

// Path returns the file of a namespace.
func Path(name string) string { return filepath.Join(directory, name) }

// Create creates a namespace with its loopback interface up.
func Create(name string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	file, err := os.OpenFile(Path(name), os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	file.Close()
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", Path(name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind to %s: %w", Path(name), err)
		}
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback interface: %w", err)
		}
		return netlink.LinkSetUp(loopback)
	})
	if err != nil {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	return nil
}

// Delete removes the name, if it exists, and the directory with the last name. The namespace ends with its
// last process.
func Delete(name string) error {
	// EINVAL: an interrupted creation left a file without a mount.
	err := unix.Unmount(Path(name), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete network namespace %s: unmount: %w", name, err)
	}
	if err := os.Remove(Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	err = os.Remove(directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("delete the directory of network namespaces: %w", err)
	}
	return nil
}

// List returns the names with the prefix.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// Do runs f on a thread in the namespace. Sockets and processes of f belong to the namespace, goroutines do
// not. It returns ErrNotExist for a missing namespace.
func Do(name string, f func() error) error {
	return onOwnThread(func() error {
		if err := Enter(name); err != nil {
			return err
		}
		return f()
	})
}

// Enter moves the calling thread, which must be locked, into the namespace.
func Enter(name string) error {
	fd, err := unix.Open(Path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("enter %s: %w", name, ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	defer unix.Close(fd)
	err = unix.Setns(fd, unix.CLONE_NEWNET)
	// An interrupted creation left an ordinary file.
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("enter %s: %w", name, ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	return nil
}

// Inode identifies a namespace, as in the links of /proc/PID/ns.
func Inode(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, fmt.Errorf("identify namespace %s: %w", path, err)
	}
	return stat.Ino, nil
}

func onOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		result <- f()
	}()
	return <-result
}
