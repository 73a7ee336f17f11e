// SPDX-License-Identifier: Apache-2.0

// Package machine runs a host of the lab: a process tree in namespaces of its own
// whose first process mounts the host's file systems and keeps its services
// running. Killing that process ends the whole host at once, as a power loss does.
package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Spec describes a machine. It is kept as a file in the machine's directory.
type Spec struct {
	// Name is the host name.
	Name string `json:"name"`
	// Namespace is the name of the network namespace.
	Namespace string `json:"namespace"`
	// Dir is the machine's directory, its disk: it outlives the machine's processes.
	Dir string `json:"dir"`
	// Path is the search path of the services and of commands run on the machine.
	Path string `json:"path"`
	// Binds put directories of the machine's disk over places of the file system.
	Binds []Bind `json:"binds,omitempty"`
	// RunFolders are made below the machine's own, empty /run.
	RunFolders []Folder `json:"runFolders,omitempty"`
	// ShadowSysctls maps a path below /proc/sys to a value that the machine sees
	// there. The settings concern the whole machine that the lab runs on, and are
	// shadowed by plain files so that services may write them without effect.
	ShadowSysctls map[string]string `json:"shadowSysctls,omitempty"`
	// Cgroup names the machine's own cgroups; empty leaves it in the caller's.
	Cgroup string `json:"cgroup,omitempty"`
	// BPF mounts a BPF file system of the machine's own at /sys/fs/bpf.
	BPF      bool      `json:"bpf,omitempty"`
	Services []Service `json:"services,omitempty"`
}

// Bind puts the directory Source, relative to the machine's directory, over Target.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
	// Owner is the user who owns Source; empty means root.
	Owner string `json:"owner,omitempty"`
}

// Folder is a directory made at start.
type Folder struct {
	Path  string `json:"path"`
	Owner string `json:"owner,omitempty"`
}

// Service is a program that the machine keeps running.
type Service struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// Once reports whether the program does its work and ends; it is then ready.
	Once bool `json:"once,omitempty"`
	// Ready tells when services that come after this one may start.
	Ready *Probe `json:"ready,omitempty"`
	// After names services that must be ready first.
	After []string `json:"after,omitempty"`
	// Until is awaited before the start as well, for things that run elsewhere.
	Until *Probe `json:"until,omitempty"`
}

// Probe is a condition. One of the fields is set.
type Probe struct {
	// Dial is "network address", such as "unix /run/x.sock" or "tcp 127.0.0.1:80",
	// that must accept a connection.
	Dial string `json:"dial,omitempty"`
	// URL must answer 200; its certificate is verified by CAFile.
	URL    string `json:"url,omitempty"`
	CAFile string `json:"caFile,omitempty"`
}

const (
	specFile = "machine.json"
	pidFile  = "pid"
	logDir   = "log"
)

// LogDir returns the directory of the services' output.
func LogDir(dir string) string { return filepath.Join(dir, logDir) }

// Load reads the spec of the machine in a directory.
func Load(dir string) (Spec, error) {
	var spec Spec
	content, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil {
		return spec, fmt.Errorf("read machine: %w", err)
	}
	if err := json.Unmarshal(content, &spec); err != nil {
		return spec, fmt.Errorf("read machine %s: %w", filepath.Join(dir, specFile), err)
	}
	return spec, nil
}

func save(spec Spec) error {
	content, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return fmt.Errorf("encode machine %s: %w", spec.Name, err)
	}
	for _, dir := range []string{spec.Dir, LogDir(spec.Dir), filepath.Join(spec.Dir, "tmp")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create directory of machine %s: %w", spec.Name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(spec.Dir, specFile), content, 0o644); err != nil {
		return fmt.Errorf("write machine %s: %w", spec.Name, err)
	}
	return nil
}
