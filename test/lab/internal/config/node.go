// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"path/filepath"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/pki"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	proxyFile        = "kube-proxy.yaml"
)

func nodeBinds() []machine.Bind {
	return []machine.Bind{
		{Source: "var-lib", Target: "/var/lib"},
		{Source: "var-log", Target: "/var/log"},
	}
}

// HiddenFolders returns directories that nodes mount over, where the lab's files cannot be.
func HiddenFolders() []string {
	directories := []string{"/run", "/proc", "/sys"}
	for _, bind := range nodeBinds() {
		directories = append(directories, bind.Target)
	}
	return directories
}

func (l Lab) node(spec machine.Spec, host topology.Host) (machine.Spec, []File, error) {
	spec.Path = l.Programs["containerd"] + ":" + l.Programs["runc"] + ":" + systemPath
	spec.Cgroup = NamespacePrefix + host.Name
	spec.BPF = true
	spec.Binds = nodeBinds()
	// Settings that the kubelet writes or requires.
	spec.ShadowSysctls = map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	}
	if l.CNI.Project() == string(Cilium) {
		maps.Copy(spec.ShadowSysctls, ciliumSysctls())
	}
	spec.Services = l.nodeServices(spec, host)
	files, err := l.nodeFiles(spec, host)
	return spec, files, err
}

func (l Lab) nodeServices(spec machine.Spec, host topology.Host) []machine.Service {
	ready := &machine.Probe{URL: l.Server() + "/readyz", CAFile: pki.CAFile(l.KeyDir())}
	services := []machine.Service{
		{
			Name:    "containerd",
			Command: []string{"containerd", "--config", filepath.Join(spec.Dir, "containerd.toml")},
			Ready:   &machine.Probe{Dial: "unix " + containerdSocket},
		},
		{
			Name:  "images",
			Once:  true,
			After: []string{"containerd"},
			Command: []string{
				"/bin/sh", "-ec", `for image in "$0"/*.tar; do ctr -n k8s.io images import --local "$image"; done`, l.ImageDir(),
			},
		},
		{
			Name:  "kubelet",
			After: []string{"images"},
			Until: ready,
			Command: []string{
				l.Kubernetes(), "kubelet",
				"--config=" + filepath.Join(spec.Dir, "kubelet.yaml"),
				"--kubeconfig=" + l.Kubeconfig(host.Name),
				"--hostname-override=" + host.Name,
				"--node-ip=" + l.nodeIP(host),
				"--root-dir=/var/lib/kubelet",
				"--v=2",
			},
		},
	}
	services = append(services, l.proxyServices(spec, ready)...)
	return append(services, l.cniServices(spec, host, ready)...)
}

// proxyServices runs kube-proxy, also on the control plane, because the API server reaches cluster IPs and
// webhooks through it. There it has no Node and starts after 30 seconds.
func (l Lab) proxyServices(spec machine.Spec, ready *machine.Probe) []machine.Service {
	if l.CNI.ReplacesProxy() {
		return nil
	}
	return []machine.Service{{
		Name:  "kube-proxy",
		Until: ready,
		Command: []string{
			l.Kubernetes(), "kube-proxy",
			"--config=" + filepath.Join(spec.Dir, proxyFile),
			"--hostname-override=" + spec.Name,
			"--v=2",
		},
	}}
}

func (l Lab) proxyConfiguration() templateFile {
	return templateFile{proxyFile, proxyFile, map[string]any{
		"Kubeconfig":   l.Kubeconfig(proxy),
		"Mode":         l.ProxyMode,
		"ClusterCIDRs": fmt.Sprintf("%s,%s", topology.PodsV4, topology.PodsV6),
	}}
}

// nodeIP is the kubelet's --node-ip.
func (l Lab) nodeIP(host topology.Host) string {
	if l.IPv4Nodes {
		return host.AddrV4().String()
	}
	return fmt.Sprintf("%s,%s", host.AddrV4(), host.AddrV6())
}

func (l Lab) nodeFiles(spec machine.Spec, host topology.Host) ([]File, error) {
	keys := l.KeyDir()
	grace := int(l.NodeGrace.Seconds())
	templates := []templateFile{
		{"containerd.toml", "containerd.toml", map[string]any{
			"Dir":          spec.Dir,
			"Snapshotter":  l.Snapshotter,
			"SandboxImage": SandboxImage,
			"CNIBinaries":  l.cniBinaries(),
			"Runc":         filepath.Join(l.Programs["runc"], "runc"),
		}},
		{"kubelet.yaml", "kubelet.yaml", map[string]any{
			"ClusterDNS":    topology.DNSServiceV4,
			"CAFile":        pki.CAFile(keys),
			"CertFile":      pki.CertFile(keys, host.Name),
			"KeyFile":       pki.KeyFile(keys, host.Name),
			"NodeGrace":     l.NodeGrace,
			"LeaseSeconds":  max(1, grace),
			"StatusSeconds": max(1, grace/5),
		}},
		l.proxyConfiguration(),
	}
	templates = append(templates, l.cniFiles(host)...)
	return renderAll(spec.Dir, templates)
}
