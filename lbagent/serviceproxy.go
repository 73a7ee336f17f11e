// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// serviceProxy reads the service proxy's connections from conntrack in mode from.
type serviceProxy struct{ datapath *dataplane.Dataplane }

func (s serviceProxy) MigrateFrontends(have *forwarding.State) error {
	return s.datapath.MigrateFrontends(have, proxiedFlows)
}

func (s serviceProxy) SweepProxied() error { return s.datapath.SweepProxied(proxiedFlows) }

func proxiedFlows() ([]dataplane.ProxiedFlow, error) {
	translated, err := netdev.TranslatedConnections()
	flows := make([]dataplane.ProxiedFlow, 0, len(translated))
	for _, connection := range translated {
		flows = append(flows, dataplane.ProxiedFlow{
			Client: connection.Client, VIP: connection.Destination, Protocol: connection.Protocol,
		})
	}
	return flows, err
}
