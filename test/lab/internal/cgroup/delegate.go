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

// asideSuffix ends the name of the cgroup for processes that are in the way, see Delegation.
const asideSuffix = "aside"

// needed are the version 2 controllers that the kubelet insists on, and io.
var needed = []string{"cpu", "cpuset", "io", "memory", "pids"}

// Delegation is what Delegate changed on a version 2 machine; empty on version 1.
type Delegation struct {
	// Enabled lists the controllers that were off at the root.
	Enabled []string `json:"enabled,omitempty"`
	// Aside is the cgroup that took the root's processes: a root that is a
	// container's and not the machine's may not keep any while it hands out controllers.
	Aside string `json:"aside,omitempty"`
}

// Delegate makes a version 2 machine hand out, at its root, the controllers that a
// kubelet needs. It returns what it changed, also with an error.
func Delegate(prefix string) (Delegation, error) {
	var done Delegation
	hierarchies, err := discover()
	if err != nil || !pureV2(hierarchies) {
		return done, err
	}
	root := hierarchies[0].mountpoint
	done.Enabled, err = enableControllers(root)
	if !errors.Is(err, unix.EBUSY) {
		return done, err
	}
	done.Aside = filepath.Join(root, prefix+asideSuffix)
	if err := os.Mkdir(done.Aside, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return done, fmt.Errorf("move processes out of the root cgroup: %w", err)
	}
	if err := moveAll(root, done.Aside); err != nil {
		return done, err
	}
	done.Enabled, err = enableControllers(root)
	return done, err
}

// Undelegate takes back what Delegate changed.
func Undelegate(done Delegation) error {
	if len(done.Enabled) > 0 {
		hierarchies, err := discover()
		if err != nil {
			return err
		}
		if err := control(hierarchies[0].mountpoint, "-", done.Enabled); err != nil {
			return err
		}
	}
	if done.Aside == "" {
		return nil
	}
	if err := moveAll(done.Aside, filepath.Dir(done.Aside)); err != nil {
		return err
	}
	return removeTree(done.Aside)
}

// enableControllers hands out those needed controllers that are available and
// off, and returns them.
func enableControllers(group string) ([]string, error) {
	available, err := words(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	enabled, err := words(filepath.Join(group, "cgroup.subtree_control"))
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, controller := range needed {
		if slices.Contains(available, controller) && !slices.Contains(enabled, controller) {
			missing = append(missing, controller)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	if err := control(group, "+", missing); err != nil {
		return nil, err
	}
	return missing, nil
}

func control(group, sign string, controllers []string) error {
	request := sign + strings.Join(controllers, " "+sign)
	if err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte(request), 0); err != nil {
		return fmt.Errorf("set controllers %q of cgroup %s: %w", request, group, err)
	}
	return nil
}

// moveAll moves processes until none is left; new ones may appear meanwhile.
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
