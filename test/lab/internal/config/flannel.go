// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

func (l Lab) flannelFiles(host topology.Host) []templateFile {
	backend := "vxlan"
	if l.CNI == FlannelHostGW {
		backend = "host-gw"
	}
	return []templateFile{
		{"flannel.json", "flannel.json", map[string]any{
			"PodsV4": topology.PodsV4, "PodsV6": topology.PodsV6, "Backend": backend,
		}},
		{"cni/flannel.conflist.in", "flannel.conflist", map[string]any{
			"PodCIDRs": host.PodCIDRs, "PodsV4": topology.PodsV4, "PodsV6": topology.PodsV6,
		}},
	}
}

func (l Lab) flannelServices(spec machine.Spec, host topology.Host, ready *machine.Probe) []machine.Service {
	const subnetFile = "/run/flannel/subnet.env"
	daemon := machine.Service{
		Name:  "flannel",
		Until: ready,
		Command: []string{
			"env", "NODE_NAME=" + host.Name,
			l.cniProgram("flannel"),
			"--kube-subnet-mgr",
			"--kubeconfig-file=" + l.Kubeconfig(string(Flannel)),
			"--iface=" + host.Interfaces[0].Name,
			"--ip-masq",
			"--net-config-path=" + filepath.Join(spec.Dir, "flannel.json"),
			"--subnet-file=" + subnetFile,
		},
	}
	configure := publish(spec, "flannel", `. "$1"; sed "s/@MTU@/$FLANNEL_MTU/" "$2" > "$draft"`,
		subnetFile, filepath.Join(spec.Dir, "cni", "flannel.conflist.in"))
	return []machine.Service{daemon, configure}
}
