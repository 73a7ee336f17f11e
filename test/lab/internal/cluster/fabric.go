// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// OnFabric runs a function in the network namespace that has the bridges, with the names of the
// ports there that lead to nodes by the fabric. What the function starts runs there too.
func (l *Lab) OnFabric(f func(ports []string) error) error {
	var ports []string
	for _, host := range l.Topology.Hosts {
		if host.Role != topology.RoleNode {
			continue
		}
		for _, iface := range host.Interfaces {
			if iface.Segment == topology.Fabric {
				ports = append(ports, iface.Port)
			}
		}
	}
	return netns.Do(config.FabricNamespace, func() error { return f(ports) })
}
