// SPDX-License-Identifier: Apache-2.0

// Package config turns the lab's plan into machines: the configuration files and
// command lines of the programs that run on each host. It is pure.
package config

import (
	"bytes"
	"embed"
	"fmt"
	"net/netip"
	"path/filepath"
	"text/template"
	"time"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// NamespacePrefix begins the names of the lab's network namespaces and cgroups.
const NamespacePrefix = "mrlab-"

// SandboxImage holds the process that keeps a pod's namespaces, and the workload.
const SandboxImage = "millrace.test/echo:dev"

// RouterAS is the routers' autonomous system; nodes may use any other.
const RouterAS = 64512

const (
	apiPort  = 6443
	etcdPort = 2379

	systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// KubernetesTiming as the NodeGrace of a lab sets nothing of how Kubernetes notices failed nodes: a
// grace period of 50 s, leases of 40 s that are renewed every 10 s, and a look every 5 s.
const KubernetesTiming time.Duration = 0

// Lab is everything that the configuration depends on.
type Lab struct {
	Topology topology.Topology
	// State is the lab's directory.
	State string
	// Programs are the directories of built programs, by the name of their target.
	Programs map[string]string
	// NodeGrace is how long a node may be silent until Kubernetes takes it for failed, or
	// KubernetesTiming.
	NodeGrace time.Duration
	// Snapshotter is containerd's: overlayfs, or native where overlays cannot be stacked.
	Snapshotter string
	// IPv4Nodes reports whether kubelets tell the nodes' IPv4 addresses alone.
	IPv4Nodes bool
	// CNI connects the pods.
	CNI CNI
	// ProxyMode is kube-proxy's: nftables or iptables.
	ProxyMode string
	// Router is what the routers run.
	Router Router
	// MTU of the links, and of pods that are in no overlay, in bytes.
	MTU int
}

// File is a configuration file of a machine.
type File struct {
	// Path is absolute.
	Path    string
	Content []byte
}

// FabricNamespace holds the bridges of both segments.
const FabricNamespace = NamespacePrefix + "fabric"

// Namespace returns the name of a host's network namespace.
func Namespace(host string) string { return NamespacePrefix + host }

// Dir returns a host's directory.
func (l Lab) Dir(host string) string { return filepath.Join(l.State, host) }

// KeyDir returns the directory of keys and certificates.
func (l Lab) KeyDir() string { return filepath.Join(l.State, "pki") }

// ImageDir returns the directory of image archives that nodes import when they boot.
func (l Lab) ImageDir() string { return filepath.Join(l.State, "images") }

// Kubernetes returns the program with all parts of Kubernetes.
func (l Lab) Kubernetes() string { return filepath.Join(l.Programs["kubernetes"], "kubernetes") }

// Server returns the URL of the API server.
func (l Lab) Server() string {
	return "https://" + netip.AddrPortFrom(l.Topology.ControlPlane().AddrV4(), apiPort).String()
}

// Machine returns the machine of a host and the files to write before it starts.
func (l Lab) Machine(host topology.Host) (machine.Spec, []File, error) {
	spec := machine.Spec{
		Name:      host.Name,
		Namespace: Namespace(host.Name),
		Dir:       l.Dir(host.Name),
		Path:      systemPath,
	}
	switch host.Role {
	case topology.RoleRouter:
		return l.router(spec, host)
	case topology.RoleControlPlane:
		return l.controlPlane(spec)
	case topology.RoleNode:
		return l.node(spec, host)
	}
	return spec, nil, nil
}

//go:embed templates
var templateFiles embed.FS

var templates = template.Must(template.New("").Option("missingkey=error").ParseFS(templateFiles, "templates/*"))

// templateFile is a file that a template makes with values.
type templateFile struct {
	path, name string
	values     map[string]any
}

// render fills a template.
func render(path, name string, values map[string]any) (File, error) {
	var content bytes.Buffer
	if err := templates.ExecuteTemplate(&content, name, values); err != nil {
		return File{}, fmt.Errorf("render %s: %w", path, err)
	}
	return File{Path: path, Content: content.Bytes()}, nil
}

// renderAll fills templates of files in a directory.
func renderAll(directory string, templates []templateFile) ([]File, error) {
	var files []File
	for _, template := range templates {
		file, err := render(filepath.Join(directory, template.path), template.name, template.values)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}
