// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"fmt"
	"net"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/natexempt"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

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

// hostChecks say what on the host breaks traffic, or slows it down, that goes by these uplinks.
func hostChecks(exempt *natexempt.Keeper, plane attacher) func(uplinks []string) []string {
	return func(uplinks []string) []string {
		return append(incompatible(exempt.Err(), uplinks), netdev.UnspreadTunnel(cards(plane.Attachments()))...)
	}
}

// incompatible says what on the host breaks traffic. exempt is why replies are not exempt
// from NAT, if so.
func incompatible(exempt error, uplinks []string) []string {
	var found []string
	if exempt != nil {
		found = append(found, fmt.Sprintf("when the kernel forgets a connection that goes on, the CNI may give its "+
			"replies the node's address: %v; or raise the kernel's timeouts (docs/cni.md)", exempt))
	}
	return append(found, netdev.FilterProblems(netdev.StrictlyFiltered(uplinks))...)
}
