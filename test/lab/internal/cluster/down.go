// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/millrace-lb/millrace/test/lab/internal/cgroup"
	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
)

// Down removes a lab, even an incomplete one or one of another directory, by its names in the kernel. It
// removes dir if it belongs to a lab. It reports whether anything was found.
func Down(dir string) (found bool, err error) {
	release, err := lockLab()
	if err != nil {
		return false, err
	}
	defer release()
	return down(dir)
}

func down(dir string) (found bool, err error) {
	namespaces, err := netns.List(config.NamespacePrefix)
	if err != nil {
		return false, err
	}
	if err := endNamespaces(namespaces); err != nil {
		return true, err
	}
	groups, err := cgroup.List(config.NamespacePrefix + "node")
	if err != nil {
		return true, err
	}
	var errs []error
	for _, group := range groups {
		// Populated cgroups belong to a lab in a container of this machine.
		if populated, err := cgroup.Populated(group); err != nil || populated {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, cgroup.RemoveTree(group))
	}
	directory, err := removeState(dir)
	return len(namespaces) > 0 || len(groups) > 0 || directory, errors.Join(append(errs, err)...)
}

// clearDead removes a lab without processes, after a reboot or a kill, but not a running one.
func clearDead(dir string, progress Progress) error {
	namespaces, err := netns.List(config.NamespacePrefix)
	if err != nil {
		return err
	}
	if alive, err := machine.Alive(namespaces); err != nil || alive {
		return err
	}
	found, err := down(dir)
	if found && err == nil {
		progress("removed the remains of a lab that has ended")
	}
	return err
}

// endNamespaces kills the namespaces' processes and removes them, first the one with the bridges, so that
// ending hosts cannot communicate.
func endNamespaces(namespaces []string) error {
	if slices.Contains(namespaces, config.FabricNamespace) {
		err := netns.Do(config.FabricNamespace, netns.DeletePorts)
		if err != nil && !errors.Is(err, netns.ErrNotExist) {
			return err
		}
	}
	if err := machine.KillAll(namespaces); err != nil {
		return err
	}
	for _, name := range namespaces {
		if err := netns.Delete(name); err != nil {
			return err
		}
	}
	return nil
}

// removeState reverts the changes in the state file and removes the directory, unless it has no state file.
func removeState(dir string) (found bool, err error) {
	content, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read lab: %w", err)
	}
	// If the file is truncated, nothing had been delegated yet.
	if saved, err := parseState(content); err == nil {
		if err := cgroup.Undelegate(config.NamespacePrefix, saved.Controllers); err != nil {
			return true, err
		}
	}
	return true, removeFolder(dir)
}

// removeFolder removes the state file last, so that an interrupted removal can be repeated.
func removeFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove the lab's directory: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == stateFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("remove the lab's directory: %w", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the lab's directory: %w", err)
	}
	return nil
}
