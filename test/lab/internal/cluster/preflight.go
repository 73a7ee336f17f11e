// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/test/lab/internal/cgroup"
	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

const (
	installHint = "run hack/prerequisites.sh --runtime"
	downHint    = "run `bin/lab down`"

	// inotifyPerNode is the number of inotify instances per node, inotifyReserve that of the rest of the
	// lab and machine.
	inotifyPerNode = 10
	inotifyReserve = 30
)

// ErrNotRoot means that a command needs root.
var ErrNotRoot = errors.New("the lab makes namespaces, mounts and cgroups: run it as root, for example with sudo")

// RequireRoot returns ErrNotRoot unless the user is root.
func RequireRoot() error {
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	return nil
}

func preflight(options Options, progress Progress) error {
	if _, err := topology.New(options.Nodes, options.Routers); err != nil {
		return err
	}
	checks := []func() error{
		func() error { return requireTools(options) },
		func() error { return requireVisible(options.State) },
		func() error { return requireInotify(options.Nodes) },
		func() error { return clearDead(options.State, progress) },
		func() error { return requireNoLeftovers(options.State) },
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func requireTools(options Options) error {
	tools := append([]string{"go", "gcc", "pkg-config", "nft"}, options.CNI.Tools()...)
	if options.ProxyMode == "iptables" {
		tools = append(tools, "iptables", "ip6tables")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("the program %s is missing: %s", tool, installHint)
		}
	}
	for _, file := range options.Router.Programs() {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("the router's program %s is missing: %s", file, installHint)
		}
	}
	return nil
}

// requireVisible rejects directories that machines mount over.
func requireVisible(state string) error {
	for _, hidden := range config.HiddenFolders() {
		if below, err := filepath.Rel(hidden, state); err == nil && below != ".." && !strings.HasPrefix(below, "../") {
			return fmt.Errorf("the lab's directory %s lies in %s, which the nodes replace by their own: choose another by --state", state, hidden)
		}
	}
	return nil
}

func requireInotify(nodes int) error {
	const file = "/proc/sys/fs/inotify/max_user_instances"
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read limit of inotify instances: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return fmt.Errorf("read limit of inotify instances: %w", err)
	}
	if need := nodes*inotifyPerNode + inotifyReserve; limit < need {
		return fmt.Errorf("%d nodes need about %d inotify instances and the limit is %d: "+
			"run `sysctl -w fs.inotify.max_user_instances=%d`", nodes, need, limit, need)
	}
	return nil
}

func requireNoLeftovers(state string) error {
	if _, err := os.Stat(filepath.Join(state, stateFile)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("a lab is up or was left behind in %s: %s first", state, downHint)
	}
	if entries, err := os.ReadDir(state); err == nil && len(entries) > 0 {
		return fmt.Errorf("the directory %s is not empty and not a lab's: choose another by --state", state)
	}
	namespaces, err := netns.List(config.NamespacePrefix)
	if err != nil {
		return err
	}
	groups, err := cgroup.Siblings(config.NamespacePrefix)
	if err != nil {
		return err
	}
	if found := append(namespaces, groups...); len(found) > 0 {
		return fmt.Errorf("a lab is up or was left behind by another directory (%s): %s first", found[0], downHint)
	}
	return nil
}
