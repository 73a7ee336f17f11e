// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

func ciliumFiles() []templateFile {
	// The directory must exist.
	return []templateFile{{"cni/README", "cilium-readme", nil}}
}

// ciliumServices run Cilium's agent. Of its operator only the CRDs are needed, which the lab applies.
func (l Lab) ciliumServices(spec machine.Spec, host topology.Host, ready *machine.Probe) []machine.Service {
	const (
		sources = "/var/lib/cilium/bpf"
		tools   = "/run/cilium/bin"
		written = "/run/cilium/cni/05-cilium.conflist"
		bpffs   = "/run/cilium/bpffs"
	)
	kubeconfig := l.Kubeconfig(string(Cilium))
	// The agent writes headers among its sources and compiles them with clang. It exits if two BPF file
	// systems are mounted at one path, as the node's over the machine's, so it gets another one. Its
	// program must be named cilium-agent, otherwise its maps have different paths.
	prepare := machine.Service{
		Name: "cilium-sources",
		Once: true,
		Command: []string{
			"/bin/sh", "-ec", `mkdir -p "$2" "$3" "${4%/*}" "$5"; cp -r "$1/." "$2"; ln -sf "$(command -v clang-19)" "$3/clang"
ln -sf "$6" "$3/cilium-agent"; mountpoint -q "$5" || mount -t bpf bpf "$5"; mkdir -p "$5/tc/globals"`,
			"sh", l.cniProgram("bpf"), sources, tools, written, bpffs, l.cniProgram("daemon"),
		},
	}
	agent := machine.Service{
		Name:  "cilium",
		After: []string{prepare.Name},
		Until: ready,
		Command: slices.Concat([]string{
			"env", "K8S_NODE_NAME=" + host.Name, "PATH=" + tools + ":" + spec.Path,
			tools + "/cilium-agent",
			"--k8s-kubeconfig-path=" + kubeconfig,
			"--k8s-api-server-urls=" + l.Server(),
			"--ipam=kubernetes",
			"--identity-allocation-mode=crd",
			"--devices=" + host.Interfaces[0].Name,
			"--datapath-mode=veth",
			"--enable-ipv4", "--enable-ipv6",
			"--enable-l7-proxy=false", "--enable-hubble=false",
			"--enable-health-checking=false", "--enable-endpoint-health-checking=false",
			"--cni-exclusive=false",
			"--write-cni-conf-when-ready=" + written,
			"--bpf-root=" + bpffs,
			"--cgroup-root=/run/cilium/cgroupv2",
		}, l.ciliumDatapath()),
	}
	return []machine.Service{prepare, agent, publish(spec, "cilium", `cp "$1" "$draft"`, written)}
}

// ciliumDatapath returns the flags of a datapath mode. Nodes share a link, so that pods need no tunnel.
func (l Lab) ciliumDatapath() []string {
	flags := []string{"--enable-ipv4-masquerade", "--enable-ipv6-masquerade"}
	if l.CNI == CiliumVXLAN {
		flags = append(flags, "--routing-mode=tunnel", "--tunnel-protocol=vxlan")
	} else {
		flags = append(flags, "--routing-mode=native", "--auto-direct-node-routes",
			fmt.Sprintf("--ipv4-native-routing-cidr=%s", topology.PodsV4),
			fmt.Sprintf("--ipv6-native-routing-cidr=%s", topology.PodsV6))
	}
	if l.CNI.ReplacesProxy() {
		return append(flags, "--kube-proxy-replacement=true", "--enable-bpf-masquerade=true", "--bpf-lb-mode=snat")
	}
	return append(flags, "--kube-proxy-replacement=false", "--enable-bpf-masquerade=false")
}

func ciliumSysctls() map[string]string {
	return map[string]string{"kernel/timer_migration": "1", "kernel/unprivileged_bpf_disabled": "2"}
}
