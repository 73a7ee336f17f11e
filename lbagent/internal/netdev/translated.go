// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Translated is a connection, or flow of datagrams, whose destination the node's netfilter translates:
// a service proxy's, as a rule.
type Translated struct {
	Client, Destination netip.AddrPort
	// Protocol is that of the IP header.
	Protocol uint8
}

// TranslatedConnections are those of the node's network namespace, of both address families.
func TranslatedConnections() ([]Translated, error) {
	var all []Translated
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return nil, fmt.Errorf("list the connections of netfilter of address family %d: %w", family, err)
		}
		for _, flow := range flows {
			if flow.Reverse.SrcIP.Equal(flow.Forward.DstIP) && flow.Reverse.SrcPort == flow.Forward.DstPort {
				continue
			}
			all = append(all, Translated{
				Client:      addrPort(flow.Forward.SrcIP, flow.Forward.SrcPort),
				Destination: addrPort(flow.Forward.DstIP, flow.Forward.DstPort),
				Protocol:    flow.Forward.Protocol,
			})
		}
	}
	return all, nil
}
