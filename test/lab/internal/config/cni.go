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

// CNI is what connects the pods.
type CNI string

// The CNIs of the lab.
const (
	// PTP is a link for each pod and static routes, without masquerading.
	PTP CNI = "ptp"
	// Flannel is VXLAN with masquerading by iptables.
	Flannel CNI = "flannel"
	// FlannelHostGW is the same with routes to the other nodes in place of VXLAN.
	FlannelHostGW CNI = "flannel-host-gw"
	// Calico is VXLAN with masquerading and policies by iptables.
	Calico CNI = "calico"
	// Cilium has programs at the pods' links, beside kube-proxy, and masquerades by iptables. Nodes
	// have routes to each other's pods.
	Cilium CNI = "cilium"
	// CiliumVXLAN is the same with Cilium's default instead, a tunnel between the nodes.
	CiliumVXLAN CNI = "cilium-vxlan"
	// CiliumKPR is Cilium in place of kube-proxy (its kube-proxy replacement), which
	// masquerades by BPF.
	CiliumKPR CNI = "cilium-kpr"
)

// CNIs are all of them; the first is the default.
func CNIs() []CNI { return []CNI{PTP, Flannel, FlannelHostGW, Calico, Cilium, CiliumVXLAN, CiliumKPR} }

// ProxyModes are those of kube-proxy; the first is the default.
func ProxyModes() []string { return []string{"nftables", "iptables"} }

// ParseCNI finds a CNI by name.
func ParseCNI(name string) (CNI, error) {
	if slices.Contains(CNIs(), CNI(name)) {
		return CNI(name), nil
	}
	return "", fmt.Errorf("there is no CNI %q: choose one of %s", name, CNINames())
}

// CNINames lists the CNIs for people.
func CNINames() string {
	var names []string
	for _, cni := range CNIs() {
		names = append(names, string(cni))
	}
	return strings.Join(names, ", ")
}

// Project is whose programs the CNI is: the name of their target in the cache, and of the
// identity of its daemons. It is empty where no daemon runs.
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

// OwnRoutes reports whether the CNI itself leads packets to the pods of other nodes.
func (c CNI) OwnRoutes() bool { return c != PTP }

// NeedsPodCIDRs reports whether the CNI takes a node's pod networks from the Node.
func (c CNI) NeedsPodCIDRs() bool {
	return slices.Contains([]string{string(Flannel), string(Cilium)}, c.Project())
}

// ReplacesProxy reports whether the CNI stands in for kube-proxy.
func (c CNI) ReplacesProxy() bool { return c == CiliumKPR }

// Tools are the programs of the machine that building the CNI takes, and that its daemon calls.
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

// cniBinaries returns the directories of the plugins that containerd runs.
func (l Lab) cniBinaries() []string {
	directories := []string{l.Programs["cni"]}
	if own, ok := l.Programs[l.CNI.Project()]; ok {
		directories = append(directories, own)
	}
	return directories
}

// cniProgram returns a program of the CNI.
func (l Lab) cniProgram(name string) string {
	return filepath.Join(l.Programs[l.CNI.Project()], name)
}

// cniFiles returns the files of a node for its CNI. Those of a daemon that is to be awaited lie
// where containerd waits for the finished one, so that the directory is there.
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

// cniServices returns what a node runs for its CNI, when the API server is ready.
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

// publish returns a service that makes the CNI's configuration by a shell script, which writes
// it to "$draft". It fails, and runs again, until the daemon is that far. One rename gives the
// whole to containerd: it once missed a file that it saw grow.
func publish(spec machine.Spec, name, script string, arguments ...string) machine.Service {
	directory := filepath.Join(spec.Dir, "cni")
	whole := fmt.Sprintf("draft=%s/.draft; %s; mv \"$draft\" %s/10-%s.conflist", directory, script, directory, name)
	return machine.Service{
		Name:    "cni",
		Once:    true,
		Command: append([]string{"/bin/sh", "-ec", whole, "sh"}, arguments...),
	}
}

// Manifests returns what a CNI needs in the cluster before its daemons start, in order: files
// to write, and paths of manifests that its programs brought.
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
