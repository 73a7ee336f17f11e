// SPDX-License-Identifier: Apache-2.0

// Package hostcheck detects firewalls, programs, drivers and settings of a node that drop or delay
// packets of its uplinks. It changes nothing.
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

// Plane is the data plane as a source of observations about the host.
type Plane interface {
	Attachments() []dataplane.Attachment
	// ProgramsBefore returns other owners' programs by uplink, TransmitDrops the frames that drivers did
	// not transmit, WrongUplinks the number of packets of nodes on uplinks that do not lead to them.
	ProgramsBefore() (map[string][]string, error)
	TransmitDrops() ([]dataplane.UplinkTransmitDrops, error)
	TransmitDropsErr() error
	WrongUplinks() (uint64, error)
}

// Checks evaluates the settings of the host that affect forwarding.
type Checks struct {
	plane  Plane
	exempt func() error
	logger logr.Logger

	firewall    firewall
	order       tcxOrder
	drops       transmitDrops
	conntrack   conntrackTable
	otherUplink recentCounter
}

// New returns the checks for the host of a data plane. exempt returns why replies are not exempt from
// NAT, or nil. vethTransmit is true if XDP programs transmit packets on veths.
func New(plane Plane, exempt func() error, vethTransmit bool, logger logr.Logger) *Checks {
	return &Checks{plane: plane, exempt: exempt, logger: logger, drops: transmitDrops{vethTransmit: vethTransmit}}
}

// Run checks the host periodically until ctx is done, and calls changed when problems have changed.
func (c *Checks) Run(ctx context.Context, changed func()) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.otherUplink.run(ctx, c.plane.WrongUplinks, changed, c.logger) })
	group.Go(func() error { return c.drops.run(ctx, c.plane.TransmitDrops, changed, c.logger) })
	group.Go(func() error { return c.conntrack.run(ctx, changed, c.logger) })
	group.Go(func() error { return c.firewall.run(ctx, forwardpolicy.Dropping, changed, c.logger) })
	group.Go(func() error { return c.order.run(ctx, c.plane.ProgramsBefore, changed, c.logger) })
	return group.Wait()
}

// Problems returns the problems for the report. m has the pods that are served through the uplinks.
func (c *Checks) Problems(m *model.Model, uplinks []string) []string {
	c.firewall.setModel(m, uplinks)
	attachments := c.plane.Attachments()
	return slices.Concat(tagsBeside(attachments), c.drops.problems(c.plane.TransmitDropsErr()), c.firewall.problems(),
		c.conntrack.problems(), c.order.problems(), notExempt(c.exempt()), netdev.FilterProblems(netdev.StrictlyFiltered(uplinks)),
		netdev.SingleQueueTunnels(devices(attachments)))
}

// UnexpectedUplink reports whether packets of nodes recently arrived on an uplink that does not lead to those
// nodes.
func (c *Checks) UnexpectedUplink() bool { return c.otherUplink.reported.Load() }

func tagsBeside(attachments []dataplane.Attachment) []string {
	var found []string
	for i := range attachments {
		if a := &attachments[i]; a.TagsBeside != nil {
			found = append(found, fmt.Sprintf("on %s, XDP may not see the VLAN tags of %s: %v; packets to VIPs in other VLANs are then accepted too, and replies of VIPs take the slow path (docs/install.md, Uplinks)",
				a.DeviceName, a.Interface, a.TagsBeside))
		}
	}
	return found
}

func devices(attachments []dataplane.Attachment) []string {
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
