// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// Networks caches the networks and gateways of the node. A nil Networks adds none.
type Networks struct {
	read     func() ([]netdev.Network, error)
	gateways func() (map[int][]netip.Addr, error)

	onLink []model.Network
	last   model.Gateways
}

// NewNetworks returns Networks with functions that read the networks of the node's interfaces, and the
// gateways of its default routes by address family, AF_INET or AF_INET6.
func NewNetworks(read func() ([]netdev.Network, error), gateways func() (map[int][]netip.Addr, error)) *Networks {
	return &Networks{read: read, gateways: gateways}
}

// Add adds the node's networks and gateways to the objects. A family without a gateway keeps its previous
// one, so that a replaced default route does not end a session.
func (n *Networks) Add(objects *model.Snapshot) error {
	if n == nil {
		return nil
	}
	onLink, onLinkErr := n.read()
	if onLinkErr == nil {
		n.onLink = make([]model.Network, 0, len(onLink))
		for _, network := range onLink {
			n.onLink = append(n.onLink, model.Network(network))
		}
	}
	gateways, gatewaysErr := n.gateways()
	next := model.Gateways{}
	for family, name := range map[int]millracev1beta1.AddressFamily{
		unix.AF_INET: millracev1beta1.FamilyIPv4, unix.AF_INET6: millracev1beta1.FamilyIPv6,
	} {
		if next[name] = gateways[family]; len(next[name]) == 0 {
			next[name] = n.last[name]
		}
	}
	n.last = next
	objects.OnLink, objects.Gateways = n.onLink, next
	return errors.Join(onLinkErr, gatewaysErr)
}
