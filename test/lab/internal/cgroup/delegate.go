// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const asideSuffix = "aside"

// needed are the version 2 controllers that the kubelet requires, and io.
var needed = []string{"cpu", "cpuset", "io", "memory", "pids"}

// Missing returns the required controllers that a version 2 root does not enable; none on version 1.
func Missing() ([]string, error) {
	hierarchies, err := discover(self)
	if err != nil || !pureV2(hierarchies) {
		return nil, err
	}
	return missing(hierarchies[0].mountpoint)
}

// Delegate enables controllers at the version 2 root. A container's root may not contain processes then, so
// they move to a new cgroup with the prefix.
func Delegate(prefix string, controllers []string) error {
	if len(controllers) == 0 {
		return nil
	}
	hierarchies, err := discover(self)
	if err != nil {
		return err
	}
	root := hierarchies[0].mountpoint
	err = control(root, "+", controllers)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	aside := filepath.Join(root, prefix+asideSuffix)
	if err := os.Mkdir(aside, 0o755); err != nil {
		return fmt.Errorf("move processes out of the root cgroup: %w", err)
	}
	if err := moveAll(root, aside); err != nil {
		return err
	}
	return control(root, "+", controllers)
}

// Undelegate reverts a complete or partial Delegate.
func Undelegate(prefix string, controllers []string) error {
	if len(controllers) == 0 {
		return nil
	}
	hierarchies, err := discover(self)
	if err != nil {
		return err
	}
	root := hierarchies[0].mountpoint
	if err := control(root, "-", controllers); err != nil {
		return err
	}
	aside := filepath.Join(root, prefix+asideSuffix)
	if _, err := os.Stat(aside); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := moveAll(aside, root); err != nil {
		return err
	}
	return RemoveTree(aside)
}

func missing(group string) ([]string, error) {
	available, err := words(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	enabled, err := words(filepath.Join(group, "cgroup.subtree_control"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, controller := range needed {
		if slices.Contains(available, controller) && !slices.Contains(enabled, controller) {
			names = append(names, controller)
		}
	}
	return names, nil
}

func control(group, sign string, controllers []string) error {
	request := sign + strings.Join(controllers, " "+sign)
	if err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte(request), 0); err != nil {
		return fmt.Errorf("set controllers %q of cgroup %s: %w", request, group, err)
	}
	return nil
}

func moveAll(from, to string) error {
	for {
		pids, err := words(filepath.Join(from, "cgroup.procs"))
		if err != nil || len(pids) == 0 {
			return err
		}
		moved := 0
		for _, pid := range pids {
			err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(pid), 0)
			switch {
			case err == nil:
				moved++
			case errors.Is(err, unix.ESRCH):
			default:
				return fmt.Errorf("move process %s to cgroup %s: %w", pid, to, err)
			}
		}
		if moved == 0 {
			return nil
		}
	}
}

func words(file string) ([]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read cgroup: %w", err)
	}
	return strings.Fields(string(content)), nil
}
