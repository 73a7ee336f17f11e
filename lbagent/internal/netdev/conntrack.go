// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TranslatedFlow is a connection or UDP flow whose destination is translated by the node's netfilter, usually
// for a service proxy.
type TranslatedFlow struct {
	Client, Destination netip.AddrPort
	Protocol            uint8
}

// TCP states of ended connections (enum tcp_conntrack of nf_conntrack_tcp.h). Netfilter keeps them for
// two minutes, in which clients may reuse the port.
const (
	tcpTimeWait = 7
	tcpClosed   = 8
)

// TranslatedConnections returns the connections of the node's network namespace, of both address
// families, except for ended ones.
func TranslatedConnections() ([]TranslatedFlow, error) {
	var all []TranslatedFlow
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return nil, fmt.Errorf("list the connections of netfilter of address family %d: %w", family, err)
		}
		for _, flow := range flows {
			if flow.Reverse.SrcIP.Equal(flow.Forward.DstIP) && flow.Reverse.SrcPort == flow.Forward.DstPort {
				continue
			}
			if tcp, is := flow.ProtoInfo.(*netlink.ProtoInfoTCP); is && (tcp.State == tcpTimeWait || tcp.State == tcpClosed) {
				continue
			}
			all = append(all, TranslatedFlow{
				Client:      addrPort(flow.Forward.SrcIP, flow.Forward.SrcPort),
				Destination: addrPort(flow.Forward.DstIP, flow.Forward.DstPort),
				Protocol:    flow.Forward.Protocol,
			})
		}
	}
	return all, nil
}
