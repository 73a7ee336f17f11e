// SPDX-License-Identifier: Apache-2.0

// Package machine runs a host of the lab: a process tree in its own namespaces whose first process mounts
// file systems and supervises services. Killing that process ends the host like a power loss.
package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Spec describes a machine and is stored in its directory.
type Spec struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	// Dir is the machine's disk, which outlives its processes.
	Dir  string `json:"dir"`
	Path string `json:"path"`
	// Binds mount directories of the disk over paths.
	Binds []Bind `json:"binds,omitempty"`
	// RunFolders are created in the machine's empty /run.
	RunFolders []Folder `json:"runFolders,omitempty"`
	// ShadowSysctls maps global sysctls to values that the machine sees. They are plain files, so that
	// writes of services have no effect.
	ShadowSysctls map[string]string `json:"shadowSysctls,omitempty"`
	// Cgroup is the name of the machine's cgroups; empty: the caller's.
	Cgroup string `json:"cgroup,omitempty"`
	// BPF mounts a separate BPF file system at /sys/fs/bpf.
	BPF      bool      `json:"bpf,omitempty"`
	Services []Service `json:"services,omitempty"`
}

// Bind mounts Source, relative to the machine's directory, over Target.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
	// Owner is the user who owns Source; empty means root.
	Owner string `json:"owner,omitempty"`
}

// Folder is a directory created at the start.
type Folder struct {
	Path  string `json:"path"`
	Owner string `json:"owner,omitempty"`
}

// Service is a supervised program.
type Service struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// Once is true if the program ends; it is then ready.
	Once bool `json:"once,omitempty"`
	// Ready is the condition for starting dependent services.
	Ready *Probe   `json:"ready,omitempty"`
	After []string `json:"after,omitempty"`
	// Until is a condition outside of the machine for the start.
	Until *Probe `json:"until,omitempty"`
}

// Probe is a condition; one field is set.
type Probe struct {
	// Dial is "network address", such as "unix /run/x.sock", that must accept a connection.
	Dial string `json:"dial,omitempty"`
	// URL must return 200; CAFile verifies its certificate.
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
