// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// takeFrom makes new connections ours, where the node's service proxy yields them. What it has is in
// netfilter.
func takeFrom(datapath *dataplane.Dataplane) func(*forwarding.State) error {
	return func(have *forwarding.State) error {
		return datapath.TakeFrontends(have, func() ([]dataplane.ProxiedFlow, error) {
			translated, err := netdev.TranslatedConnections()
			flows := make([]dataplane.ProxiedFlow, 0, len(translated))
			for _, connection := range translated {
				flows = append(flows, dataplane.ProxiedFlow{
					Client: connection.Client, VIP: connection.Destination, Protocol: connection.Protocol,
				})
			}
			return flows, err
		})
	}
}
