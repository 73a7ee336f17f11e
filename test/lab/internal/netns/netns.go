// SPDX-License-Identifier: Apache-2.0

// Package netns makes named network namespaces and runs functions inside them.
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

// directory holds the names. It is not iproute2's /run/netns: anybody's first `ip netns
// add` binds that directory onto itself with all that is mounted there. Each namespace is
// then mounted twice, and the lower mount can no longer be reached to be removed.
const directory = "/run/millrace-lab"

// ErrNotExist means that there is no network namespace of a name.
var ErrNotExist = errors.New("network namespace does not exist")

// Path returns the file that names a namespace.
func Path(name string) string { return filepath.Join(directory, name) }

// Create makes a namespace whose loopback interface is up.
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

// Delete removes the name; the namespace itself ends with its last process.
// A name that does not exist is no error. With the last name the directory goes.
func Delete(name string) error {
	// EINVAL: the file is there but nothing is mounted on it, because its creation was interrupted.
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

// List returns the names that begin with prefix.
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

// Do runs f on a thread that is in the namespace. Sockets that f opens and
// processes that f starts belong to the namespace; goroutines that it starts do not.
// It returns ErrNotExist when there is no such namespace.
func Do(name string, f func() error) error {
	return onOwnThread(func() error {
		if err := Enter(name); err != nil {
			return err
		}
		return f()
	})
}

// Enter moves the calling thread, which the caller has locked, into the namespace.
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
	// The creation of the namespace was interrupted: its file is an ordinary one.
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

// onOwnThread runs f on a thread that ends afterwards, so that whatever f changed
// about the thread ends with it.
func onOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime then ends the thread with the goroutine
		result <- f()
	}()
	return <-result
}
