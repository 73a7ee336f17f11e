// SPDX-License-Identifier: Apache-2.0

// Package cgroup creates cgroups for the lab's nodes, like a container runtime: version 1, hybrid and
// version 2.
//
// On version 1 they are below the caller's cgroups, whose limits apply. On version 2 they are below the
// mounted root, because controllers cannot be enabled below the caller's cgroup while it contains
// processes.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mountRoot = "/sys/fs/cgroup"
	// initLeaf holds a version 2 node's first process, because a cgroup that enables controllers may not
	// contain processes (cgroups(7), "no internal processes").
	initLeaf      = "init"
	removeTimeout = 10 * time.Second
)

// Join moves the calling process into a new cgroup in every hierarchy. The caller then enters a cgroup
// namespace with these as roots.
func Join(name string) error {
	hierarchies, err := discover(self)
	if err != nil {
		return err
	}
	for _, parent := range parents(hierarchies) {
		group := filepath.Join(parent, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			return fmt.Errorf("create cgroup of %s: %w", name, err)
		}
		if err := copyCPUSet(parent, group); err != nil {
			return fmt.Errorf("cgroup of %s: %w", name, err)
		}
		if err := moveSelf(group); err != nil {
			return fmt.Errorf("cgroup of %s: %w", name, err)
		}
	}
	return nil
}

// parents returns the parent of new cgroups in each hierarchy.
func parents(hierarchies []hierarchy) []string {
	if pureV2(hierarchies) {
		return []string{hierarchies[0].mountpoint}
	}
	var groups []string
	for _, hierarchy := range hierarchies {
		groups = append(groups, hierarchy.own)
	}
	return groups
}

// Follow moves the calling process into the cgroups of another one.
func Follow(pid int) error {
	hierarchies, err := discover(strconv.Itoa(pid))
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		if err := moveSelf(hierarchy.own); err != nil {
			return err
		}
	}
	return nil
}

// copyCPUSet initializes a version 1 cpuset, which is empty and otherwise accepts no process.
func copyCPUSet(parent, group string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		content, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		// Version 2 inherits, and an empty value at the root is normal.
		if strings.TrimSpace(string(content)) == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(group, file), content, 0); err != nil {
			return fmt.Errorf("copy %s: %w", file, err)
		}
	}
	return nil
}

// moveSelf writes 0, the writing process in any PID namespace.
func moveSelf(group string) error {
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("move process to %s: %w", group, err)
	}
	return nil
}

// MountView mounts the hierarchies of the calling process's cgroup namespace at the usual path.
func MountView() error {
	hierarchies, err := discover(self)
	if err != nil {
		return err
	}
	if pureV2(hierarchies) {
		return mountViewV2()
	}
	if err := unix.Mount("tmpfs", mountRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs at %s: %w", mountRoot, err)
	}
	for _, hierarchy := range hierarchies {
		if err := mountHierarchy(hierarchy); err != nil {
			return err
		}
	}
	return nil
}

func mountHierarchy(hierarchy hierarchy) error {
	target := filepath.Join(mountRoot, hierarchy.directory())
	if err := os.Mkdir(target, 0o755); err != nil {
		return fmt.Errorf("create mount point: %w", err)
	}
	kind, options := "cgroup", hierarchy.name
	switch {
	case hierarchy.name == "":
		kind = "cgroup2"
	case strings.HasPrefix(hierarchy.name, "name="):
		options = "none," + hierarchy.name
	}
	if err := unix.Mount(kind, target, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount cgroups at %s: %w", target, err)
	}
	controllers := strings.Split(hierarchy.name, ",")
	if len(controllers) < 2 {
		return nil
	}
	for _, controller := range controllers {
		if err := os.Symlink(hierarchy.name, filepath.Join(mountRoot, controller)); err != nil {
			return fmt.Errorf("link controller %s: %w", controller, err)
		}
	}
	return nil
}

func mountViewV2() error {
	if err := unix.Mount("cgroup2", mountRoot, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount cgroups at %s: %w", mountRoot, err)
	}
	leaf := filepath.Join(mountRoot, initLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return fmt.Errorf("create cgroup of the node's own processes: %w", err)
	}
	if err := moveSelf(leaf); err != nil {
		return err
	}
	controllers, err := missing(mountRoot)
	if err != nil || len(controllers) == 0 {
		return err
	}
	return control(mountRoot, "+", controllers)
}

// Remove removes all cgroups of this name with their children. Their processes must have ended or be
// ending.
func Remove(name string) error {
	groups, err := find(func(candidate string) bool { return candidate == name })
	if err != nil {
		return err
	}
	var errs []error
	for _, group := range groups {
		errs = append(errs, RemoveTree(group))
	}
	return errors.Join(errs...)
}

// List returns the directories of all cgroups with the prefix.
func List(prefix string) ([]string, error) {
	return find(func(candidate string) bool { return strings.HasPrefix(candidate, prefix) })
}

// Siblings returns the directories of cgroups with the prefix that have the same parents as those of Join.
func Siblings(prefix string) ([]string, error) {
	hierarchies, err := discover(self)
	if err != nil {
		return nil, err
	}
	var groups []string
	for _, parent := range parents(hierarchies) {
		entries, err := os.ReadDir(parent)
		if err != nil {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, entry := range entries {
			if entry.IsDir() && strings.HasPrefix(entry.Name(), prefix) {
				groups = append(groups, filepath.Join(parent, entry.Name()))
			}
		}
	}
	return groups, nil
}

// Populated reports whether a cgroup or its children contain processes.
func Populated(group string) (populated bool, err error) {
	err = filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() != "cgroup.procs" {
			return err
		}
		processes, err := os.ReadFile(path)
		// Processes of a threaded version 2 cgroup are listed in its parent.
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		if err != nil || len(processes) == 0 {
			return err
		}
		populated = true
		return fs.SkipAll
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return false, nil // it ended meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("look for processes in cgroup %s: %w", group, err)
	}
	return populated, nil
}

func find(match func(name string) bool) ([]string, error) {
	var groups []string
	err := filepath.WalkDir(mountRoot, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it ended meanwhile
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && match(entry.Name()) {
			groups = append(groups, path)
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("search cgroups: %w", err)
	}
	return groups, nil
}

// RemoveTree removes a cgroup and its children, deepest first. It retries, because the kernel refuses for a
// moment after the last process has ended, without a notification on version 1.
func RemoveTree(group string) error {
	deadline := time.Now().Add(removeTimeout)
	for {
		err := removeOnce(group)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", group, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func removeOnce(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeOnce(filepath.Join(group, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(group); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
