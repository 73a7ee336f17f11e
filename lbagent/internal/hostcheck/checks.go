// SPDX-License-Identifier: Apache-2.0

// Package hostcheck finds what of a node keeps the packets of its uplinks from being carried, or slows
// them down: firewalls, programs of others, drivers and settings. It changes nothing.
package hostcheck

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwardpolicy"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// Plane is what a data plane tells of the host.
type Plane interface {
	Attachments() []dataplane.Attachment
	// ProgramsBefore are programs of others by uplink, Losses the frames that drivers did not take, and
	// WrongUplinks the packets of nodes that came in by an uplink on which those are not reached.
	ProgramsBefore() (map[string][]string, error)
	Losses() ([]dataplane.UplinkLosses, error)
	LossesUncounted() error
	WrongUplinks() (uint64, error)
}

// Checks are all checks of a host.
type Checks struct {
	plane Plane
	// exempt is why replies are not exempt from NAT, if so.
	exempt func() error
	logger logr.Logger

	firewall    firewall
	order       tcxOrder
	drops       transmitDrops
	conntrack   conntrackTable
	otherUplink recentCounter
}

// New returns the checks of the host of a data plane. exempt returns why replies are not exempt from
// NAT, if so. vethTransmit says that packets are sent on veths from XDP.
func New(plane Plane, exempt func() error, vethTransmit bool, logger logr.Logger) *Checks {
	return &Checks{plane: plane, exempt: exempt, logger: logger, drops: transmitDrops{vethTransmit: vethTransmit}}
}

// Run looks again and again until ctx is done, and calls changed when there is something else to tell.
func (c *Checks) Run(ctx context.Context, changed func()) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.otherUplink.run(ctx, c.plane.WrongUplinks, changed, c.logger) })
	group.Go(func() error { return c.drops.run(ctx, c.plane.Losses, changed, c.logger) })
	group.Go(func() error { return c.conntrack.run(ctx, changed, c.logger) })
	group.Go(func() error { return c.firewall.run(ctx, forwardpolicy.Dropping, changed, c.logger) })
	group.Go(func() error { return c.order.run(ctx, c.plane.ProgramsBefore, changed, c.logger) })
	return group.Wait()
}

// Problems are what the report says of the host, whose pods of a model are served by these uplinks.
func (c *Checks) Problems(m *model.Model, uplinks []string) []string {
	c.firewall.want(m, uplinks)
	attachments := c.plane.Attachments()
	return slices.Concat(tagsBeside(attachments), c.drops.problems(c.plane.LossesUncounted()), c.firewall.problems(),
		c.conntrack.problems(), c.order.problems(), notExempt(c.exempt()), netdev.FilterProblems(netdev.StrictlyFiltered(uplinks)),
		netdev.UnspreadTunnel(cards(attachments)))
}

// OtherUplink reports whether packets of nodes lately came in by an uplink on which those nodes are not
// reached.
func (c *Checks) OtherUplink() bool { return c.otherUplink.told.Load() }

// tagsBeside says on which uplinks the VLAN of a packet cannot be seen.
func tagsBeside(attachments []dataplane.Attachment) []string {
	var found []string
	for i := range attachments {
		if a := &attachments[i]; a.TagsBeside != nil {
			found = append(found, fmt.Sprintf("on %s, XDP may not see the VLAN tags of %s: %v; packets to VIPs in other "+
				"VLANs are then taken too, and answers of VIPs take the slower way (docs/install.md, Uplinks)",
				a.DeviceName, a.Interface, a.TagsBeside))
		}
	}
	return found
}

// cards are the interfaces whose drivers bring packets in: members in place of what they form.
func cards(attachments []dataplane.Attachment) []string {
	var names []string
	for i := range attachments {
		if len(attachments[i].Members) == 0 {
			names = append(names, attachments[i].DeviceName)
		}
		for _, member := range attachments[i].Members {
			if card, err := net.InterfaceByIndex(member); err == nil {
				names = append(names, card.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func notExempt(err error) []string {
	if err == nil {
		return nil
	}
	return []string{fmt.Sprintf("when the kernel forgets a connection that goes on, the CNI may give its "+
		"replies the node's address: %v; or raise the kernel's timeouts (docs/cni.md)", err)}
}
