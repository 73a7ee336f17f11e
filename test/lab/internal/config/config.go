// SPDX-License-Identifier: Apache-2.0

// Package config generates the machines' configuration files and command lines from the topology. It is
// pure.
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

// NamespacePrefix is the prefix of the lab's network namespaces and cgroups.
const NamespacePrefix = "mrlab-"

// SandboxImage is the image of pod sandboxes and of the workload.
const SandboxImage = "millrace.test/echo:dev"

// RouterAS is the AS of the routers; nodes may use any other.
const RouterAS = 64512

const (
	apiPort  = 6443
	etcdPort = 2379

	systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// KubernetesTiming as NodeGrace selects Kubernetes' defaults: a grace period of 50 s, 40 s leases renewed
// every 10 s, and checks every 5 s.
const KubernetesTiming time.Duration = 0

// Lab is the input of the configuration.
type Lab struct {
	Topology topology.Topology
	State    string
	Programs map[string]string
	// NodeGrace is the grace period of failed nodes, or KubernetesTiming.
	NodeGrace time.Duration
	// Snapshotter is containerd's: overlayfs, or native if overlays cannot be nested.
	Snapshotter string
	IPv4Nodes   bool
	CNI         CNI
	// ProxyMode is kube-proxy's: nftables or iptables.
	ProxyMode string
	Router    Router
	MTU       int
}

// File is a configuration file of a machine.
type File struct {
	Path    string
	Content []byte
}

// FabricNamespace has the bridges of both segments.
const FabricNamespace = NamespacePrefix + "fabric"

// Namespace returns the name of a host's network namespace.
func Namespace(host string) string { return NamespacePrefix + host }

// Dir returns a host's directory.
func (l Lab) Dir(host string) string { return filepath.Join(l.State, host) }

// KeyDir returns the directory of keys and certificates.
func (l Lab) KeyDir() string { return filepath.Join(l.State, "pki") }

// ImageDir returns the directory of image archives that booting nodes import.
func (l Lab) ImageDir() string { return filepath.Join(l.State, "images") }

// Kubernetes returns the program with all components of Kubernetes.
func (l Lab) Kubernetes() string { return filepath.Join(l.Programs["kubernetes"], "kubernetes") }

// Server returns the URL of the API server.
func (l Lab) Server() string {
	return "https://" + netip.AddrPortFrom(l.Topology.ControlPlane().AddrV4(), apiPort).String()
}

// Machine returns the machine of a host and its files, to write before the start.
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

type templateFile struct {
	path, name string
	values     map[string]any
}

func render(path, name string, values map[string]any) (File, error) {
	var content bytes.Buffer
	if err := templates.ExecuteTemplate(&content, name, values); err != nil {
		return File{}, fmt.Errorf("render %s: %w", path, err)
	}
	return File{Path: path, Content: content.Bytes()}, nil
}

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
