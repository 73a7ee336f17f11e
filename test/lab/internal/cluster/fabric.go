// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// OnFabric runs f in the namespace of the bridges with the names of the fabric ports of nodes. Processes
// that f starts run there too.
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
