// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

const (
	frrUser     = "frr"
	frrPrograms = "/usr/lib/frr"
	// frrConfig and frrSockets are compiled into the daemons and vtysh.
	frrConfig  = "/etc/frr"
	frrSockets = "/run/frr"
)

// bfdConfig is a profile for the nodes' BFD sessions, used by lab failover.
const bfdConfig = `bfd
 profile fast
  transmit-interval 100
  receive-interval 100
 exit
exit
`

// frr runs zebra, bfdd and bgpd with their default paths, so that vtysh works.
func (l Lab) frr(spec machine.Spec, host topology.Host) (machine.Spec, []File, error) {
	const directory = "frr"
	bgpd, err := render(filepath.Join(spec.Dir, directory, "bgpd.conf"), "bgpd.conf", map[string]any{
		"Name":     host.Name,
		"RouterAS": RouterAS,
		"RouterID": host.AddrV4(),
		"FabricV4": topology.FabricV4,
		"FabricV6": topology.FabricV6,
		"Nodes":    l.Topology.WithRole(topology.RoleNode),
	})
	if err != nil {
		return spec, nil, err
	}
	spec.Binds = []machine.Bind{{Source: directory, Target: frrConfig, Owner: frrUser}}
	spec.RunFolders = []machine.Folder{{Path: frrSockets, Owner: frrUser}}
	spec.Services = []machine.Service{
		{
			Name:    "zebra",
			Command: preferred(frrPrograms+"/zebra", "-A", "127.0.0.1", "--log", "stdout"),
			Ready:   &machine.Probe{Dial: "unix " + frrSockets + "/zserv.api"},
		},
		{
			Name:    "bfdd",
			Command: preferred(frrPrograms+"/bfdd", "-A", "127.0.0.1", "--log", "stdout"),
			After:   []string{"zebra"},
			Ready:   &machine.Probe{Dial: "unix " + frrSockets + "/bfdd.vty"},
		},
		{
			Name:    "bgpd",
			Command: preferred(frrPrograms+"/bgpd", "-A", "127.0.0.1", "--log", "stdout"),
			After:   []string{"zebra", "bfdd"},
		},
	}
	return spec, []File{
		bgpd,
		{Path: filepath.Join(spec.Dir, directory, "zebra.conf"), Content: []byte("hostname " + host.Name + "\n")},
		{Path: filepath.Join(spec.Dir, directory, "bfdd.conf"), Content: []byte(bfdConfig)},
		{Path: filepath.Join(spec.Dir, directory, "vtysh.conf"), Content: []byte("no service integrated-vtysh-config\n")},
	}, nil
}
