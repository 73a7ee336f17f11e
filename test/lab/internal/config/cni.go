// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// CNI is the network of pods.
type CNI string

// The CNIs of the lab.
const (
	// PTP is a veth per pod and static routes, without masquerading.
	PTP CNI = "ptp"
	// Flannel is VXLAN with masquerading by iptables.
	Flannel CNI = "flannel"
	// FlannelHostGW is Flannel with routes instead of VXLAN.
	FlannelHostGW CNI = "flannel-host-gw"
	// Calico is VXLAN with masquerading and policies by iptables.
	Calico CNI = "calico"
	// Cilium runs BPF programs on pod links with native routing, kube-proxy and masquerading by iptables.
	Cilium CNI = "cilium"
	// CiliumVXLAN is Cilium with its default tunnel between nodes.
	CiliumVXLAN CNI = "cilium-vxlan"
	// CiliumKPR is Cilium with kube-proxy replacement and BPF masquerading.
	CiliumKPR CNI = "cilium-kpr"
)

// CNIs returns all CNIs; the first is the default.
func CNIs() []CNI { return []CNI{PTP, Flannel, FlannelHostGW, Calico, Cilium, CiliumVXLAN, CiliumKPR} }

// ProxyModes returns the modes of kube-proxy; the first is the default.
func ProxyModes() []string { return []string{"nftables", "iptables"} }

// ParseCNI returns the CNI with a name.
func ParseCNI(name string) (CNI, error) {
	if slices.Contains(CNIs(), CNI(name)) {
		return CNI(name), nil
	}
	return "", fmt.Errorf("there is no CNI %q: choose one of %s", name, CNINames())
}

// CNINames returns the CNIs for messages.
func CNINames() string {
	var names []string
	for _, cni := range CNIs() {
		names = append(names, string(cni))
	}
	return strings.Join(names, ", ")
}

// Project returns the cache target of the CNI's programs, which is also the identity of its daemons. It is
// empty without a daemon.
func (c CNI) Project() string {
	switch c {
	case PTP:
		return ""
	case FlannelHostGW:
		return string(Flannel)
	case CiliumVXLAN, CiliumKPR:
		return string(Cilium)
	}
	return string(c)
}

// OwnRoutes reports whether the CNI routes to pods of other nodes.
func (c CNI) OwnRoutes() bool { return c != PTP }

// NeedsPodCIDRs reports whether the CNI reads podCIDRs of Nodes.
func (c CNI) NeedsPodCIDRs() bool {
	return slices.Contains([]string{string(Flannel), string(Cilium)}, c.Project())
}

// ReplacesProxy reports whether the CNI replaces kube-proxy.
func (c CNI) ReplacesProxy() bool { return c == CiliumKPR }

// Tools returns programs required to build and run the CNI.
func (c CNI) Tools() []string {
	tools := []string{"iptables", "ip6tables"}
	switch c.Project() {
	case "":
		return nil
	case string(Calico):
		return append(tools, "make", "ipset")
	case string(Cilium):
		return append(tools, "ipset", "clang-19")
	}
	return tools
}

func (l Lab) cniBinaries() []string {
	directories := []string{l.Programs["cni"]}
	if own, ok := l.Programs[l.CNI.Project()]; ok {
		directories = append(directories, own)
	}
	return directories
}

func (l Lab) cniProgram(name string) string {
	return filepath.Join(l.Programs[l.CNI.Project()], name)
}

// cniFiles returns the CNI's files of a node. They are in the directory where containerd waits for the CNI
// configuration, so that it exists.
func (l Lab) cniFiles(host topology.Host) []templateFile {
	switch l.CNI.Project() {
	case string(Flannel):
		return l.flannelFiles(host)
	case string(Calico):
		return l.calicoFiles(host)
	case string(Cilium):
		return ciliumFiles()
	default:
		return []templateFile{{
			"cni/10-pods.conflist", "pods.conflist", map[string]any{"PodCIDRs": host.PodCIDRs, "MTU": l.MTU},
		}}
	}
}

// cniServices returns the CNI's services of a node, to start when the API server is ready.
func (l Lab) cniServices(spec machine.Spec, host topology.Host, ready *machine.Probe) []machine.Service {
	switch l.CNI.Project() {
	case string(Flannel):
		return l.flannelServices(spec, host, ready)
	case string(Calico):
		return l.calicoServices(spec, host, ready)
	case string(Cilium):
		return l.ciliumServices(spec, host, ready)
	}
	return nil
}

// publish returns a service that writes the CNI configuration with a script to "$draft" and retries until
// the daemon is ready. A rename makes it atomic, because containerd may miss a growing file.
func publish(spec machine.Spec, name, script string, arguments ...string) machine.Service {
	directory := filepath.Join(spec.Dir, "cni")
	whole := fmt.Sprintf("draft=%s/.draft; %s; mv \"$draft\" %s/10-%s.conflist", directory, script, directory, name)
	return machine.Service{
		Name:    "cni",
		Once:    true,
		Command: append([]string{"/bin/sh", "-ec", whole, "sh"}, arguments...),
	}
}

// Manifests returns files to write and manifests that the CNI's daemons need in the cluster, in order.
func (l Lab) Manifests() (paths []string, files []File, err error) {
	project := l.CNI.Project()
	if project == "" {
		return nil, nil, nil
	}
	manifests := []templateFile{{path: project + "-rbac.yaml", name: project + "-rbac.yaml"}}
	if project != string(Flannel) {
		paths = append(paths, l.cniProgram("crds.yaml"))
	}
	if project == string(Calico) {
		manifests = append(manifests, templateFile{"calico-pools.yaml", "calico-pools.yaml", map[string]any{
			"Nodes": l.Topology.WithRole(topology.RoleNode),
		}})
	}
	for _, manifest := range manifests {
		file, err := render(filepath.Join(l.State, "manifests", manifest.path), manifest.name, manifest.values)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, file)
		paths = append(paths, file.Path)
	}
	return paths, files, nil
}
