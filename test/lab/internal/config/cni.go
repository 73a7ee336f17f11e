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
)

// CNIs are all of them; the first is the default.
func CNIs() []CNI { return []CNI{PTP, Flannel} }

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

// Overlay reports whether the CNI itself carries packets between the nodes' pods.
func (c CNI) Overlay() bool { return c != PTP }

// ownIdentity reports whether the CNI runs a daemon that asks the API server.
func (c CNI) ownIdentity() bool { return c != PTP }

// NeedsPodCIDRs reports whether the CNI takes a node's pod networks from the Node.
func (c CNI) NeedsPodCIDRs() bool { return c == Flannel }

// Tools are the programs of the machine that the CNI's daemon calls.
func (c CNI) Tools() []string {
	if c == Flannel {
		return []string{"iptables", "ip6tables"}
	}
	return nil
}

// cniBinaries returns the directories of the plugins that containerd runs.
func (l Lab) cniBinaries() []string {
	directories := []string{l.Programs["cni"]}
	if own, ok := l.Programs[string(l.CNI)]; ok {
		directories = append(directories, own)
	}
	return directories
}

// cniFiles returns the files of a node for its CNI.
func (l Lab) cniFiles(host topology.Host) []templateFile {
	switch l.CNI {
	case Flannel:
		return []templateFile{
			{"flannel.json", "flannel.json", map[string]any{"PodsV4": topology.PodsV4, "PodsV6": topology.PodsV6}},
			// It lies where containerd waits for the finished one, so that the directory is there.
			{"cni/flannel.conflist.in", "flannel.conflist", map[string]any{
				"PodCIDRs": host.PodCIDRs, "PodsV4": topology.PodsV4, "PodsV6": topology.PodsV6,
			}},
		}
	default:
		return []templateFile{{
			"cni/10-pods.conflist", "pods.conflist", map[string]any{"PodCIDRs": host.PodCIDRs, "MTU": l.MTU},
		}}
	}
}

// cniServices returns what a node runs for its CNI, when the API server is ready.
func (l Lab) cniServices(spec machine.Spec, host topology.Host, ready *machine.Probe) []machine.Service {
	if l.CNI != Flannel {
		return nil
	}
	const subnetFile = "/run/flannel/subnet.env"
	daemon := machine.Service{
		Name:  "flannel",
		Until: ready,
		Command: []string{
			"env", "NODE_NAME=" + host.Name,
			filepath.Join(l.Programs[string(Flannel)], "flannel"),
			"--kube-subnet-mgr",
			"--kubeconfig-file=" + l.Kubeconfig(string(Flannel)),
			"--iface=" + host.Interfaces[0].Name,
			"--ip-masq",
			"--net-config-path=" + filepath.Join(spec.Dir, "flannel.json"),
			"--subnet-file=" + subnetFile,
		},
	}
	// It fails, and runs again, until the daemon has written the file. One rename gives the
	// whole configuration to containerd.
	conf := filepath.Join(spec.Dir, "cni")
	script := `. "$1"; sed "s/@MTU@/$FLANNEL_MTU/" "$2/flannel.conflist.in" > "$2/.draft"; mv "$2/.draft" "$2/10-flannel.conflist"`
	configure := machine.Service{
		Name:    "cni",
		Once:    true,
		Command: []string{"/bin/sh", "-ec", script, "sh", subnetFile, conf},
	}
	return []machine.Service{daemon, configure}
}

// Manifests returns the names and contents of what a CNI needs in the cluster before its
// daemons start: the rights of their identity.
func (l Lab) Manifests() ([]File, error) {
	if l.CNI != Flannel {
		return nil, nil
	}
	file, err := render(filepath.Join(l.State, "manifests", "flannel-rbac.yaml"), "flannel-rbac.yaml", nil)
	return []File{file}, err
}
