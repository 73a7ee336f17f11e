// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

type hierarchy struct {
	// name is the second field of /proc/PID/cgroup: comma-separated controllers, "name=…" without
	// controllers, or empty for version 2.
	name       string
	mountpoint string
	own        string
}

// directory returns the usual name of the mount point below /sys/fs/cgroup.
func (h hierarchy) directory() string {
	if h.name == "" {
		return "unified"
	}
	return strings.TrimPrefix(h.name, "name=")
}

func pureV2(hierarchies []hierarchy) bool {
	return len(hierarchies) == 1 && hierarchies[0].name == ""
}

const self = "self"

func discover(process string) ([]hierarchy, error) {
	membership, err := os.ReadFile(filepath.Join("/proc", process, "cgroup"))
	if err != nil {
		return nil, fmt.Errorf("read cgroups: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	hierarchies := parse(string(membership), string(mounts))
	if len(hierarchies) == 0 {
		return nil, fmt.Errorf("no cgroups are mounted below %s: mount them, the kubelet needs them", mountRoot)
	}
	return hierarchies, nil
}

// parse parses /proc/PID/cgroup and /proc/PID/mountinfo (cgroups(7), proc(5)). Hierarchies that are not
// mounted are skipped.
func parse(membership, mountinfo string) []hierarchy {
	mounts := parseMounts(mountinfo)
	var hierarchies []hierarchy
	for line := range strings.Lines(membership) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		mount, ok := mounts[normal(fields[1])]
		if !ok {
			continue
		}
		// A path outside of the mount refers to the mount's root.
		below, err := filepath.Rel(mount.root, fields[2])
		if err != nil || below == ".." || strings.HasPrefix(below, "../") {
			below = ""
		}
		hierarchies = append(hierarchies, hierarchy{
			name:       fields[1],
			mountpoint: mount.point,
			own:        filepath.Join(mount.point, below),
		})
	}
	return hierarchies
}

type mount struct {
	root, point string
}

// parseMounts returns the first cgroup mount of each hierarchy by its normalized name.
func parseMounts(mountinfo string) map[string]mount {
	mounts := map[string]mount{}
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		before, after := strings.Fields(left), strings.Fields(right)
		if !ok || len(before) < 5 || len(after) < 3 {
			continue
		}
		var key string
		switch after[0] {
		case "cgroup2":
		case "cgroup":
			key = controllersOf(after[2])
		default:
			continue
		}
		if first, twice := mounts[key]; !twice || first.point == before[4] {
			mounts[key] = mount{root: before[3], point: before[4]}
		}
	}
	return mounts
}

// controllersOf returns a hierarchy's name from super block options.
func controllersOf(options string) string {
	var names []string
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "rw", "ro", "none", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods":
			continue
		}
		if strings.HasPrefix(option, "release_agent=") {
			continue
		}
		names = append(names, option)
	}
	return normal(strings.Join(names, ","))
}

// normal sorts controllers, because the kernel's two files may differ in order.
func normal(name string) string {
	names := strings.Split(name, ",")
	slices.Sort(names)
	return strings.Join(names, ",")
}
