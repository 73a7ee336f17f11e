// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

func (l Lab) calicoFiles(host topology.Host) []templateFile {
	return []templateFile{{"cni/calico.conflist.in", "calico.conflist", map[string]any{
		"Node": host.Name, "Kubeconfig": l.Kubeconfig(string(Calico)),
	}}}
}

func (l Lab) calicoServices(spec machine.Spec, host topology.Host, ready *machine.Probe) []machine.Service {
	iface := "interface=" + host.Interfaces[0].Name
	environment := []string{
		"env",
		"DATASTORE_TYPE=kubernetes",
		"KUBECONFIG=" + l.Kubeconfig(string(Calico)),
		"NODENAME=" + host.Name,
		"CALICO_NETWORKING_BACKEND=vxlan",
		"IP=autodetect", "IP_AUTODETECTION_METHOD=" + iface,
		"IP6=autodetect", "IP6_AUTODETECTION_METHOD=" + iface,
		"NO_DEFAULT_POOLS=true",
		"FELIX_DATASTORETYPE=kubernetes",
		"FELIX_FELIXHOSTNAME=" + host.Name,
		"FELIX_IPV6SUPPORT=true",
		"FELIX_IPTABLESBACKEND=NFT",
		"FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT",
		"FELIX_USAGEREPORTINGENABLED=false",
		"FELIX_LOGSEVERITYSCREEN=Info",
		"FELIX_LOGFILEPATH=none",
	}
	run := func(part string) machine.Service {
		command := append(environment[:len(environment):len(environment)], l.cniProgram("calico-node"), "-"+part)
		return machine.Service{Name: "calico-" + part, Command: command, After: []string{"calico-startup"}}
	}
	startup := run("startup")
	startup.Once, startup.Until, startup.After = true, ready, nil
	// A pool created while the tunnel address allocator starts is lost, and Felix then has no route to
	// other nodes.
	pools := machine.Service{
		Name: "calico-pools", Once: true, After: []string{"calico-startup"},
		Command: []string{
			l.Kubernetes(), "kubectl", "--kubeconfig=" + l.Kubeconfig(string(Calico)),
			"get", "ippools.crd.projectcalico.org", host.Name + "-ipv4", host.Name + "-ipv6",
		},
	}
	allocate := run("allocate-tunnel-addrs")
	allocate.After = []string{pools.Name}
	configure := publish(spec, "calico", `cp "$1" "$draft"`, filepath.Join(spec.Dir, "cni", "calico.conflist.in"))
	configure.After = []string{"calico-startup"}
	return []machine.Service{startup, pools, allocate, run("monitor-addresses"), run("felix"), configure}
}
