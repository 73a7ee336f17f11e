// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Connection is an established TCP connection of the node's network namespace.
type Connection struct {
	Local, Remote netip.AddrPort
	Inode         uint64
}

// Connections returns the established connections of an address family, AF_INET or AF_INET6. IPv4-mapped
// IPv6 addresses are unmapped.
func Connections(family uint8) ([]Connection, error) {
	sockets, err := netlink.SocketDiagTCP(family)
	if err != nil {
		return nil, fmt.Errorf("list the TCP connections of address family %d: %w", family, err)
	}
	var connections []Connection
	for _, socket := range sockets {
		if socket.State != netlink.TCP_ESTABLISHED {
			continue
		}
		connections = append(connections, Connection{
			Local:  addrPort(socket.ID.Source, socket.ID.SourcePort),
			Remote: addrPort(socket.ID.Destination, socket.ID.DestinationPort),
			Inode:  uint64(socket.INode),
		})
	}
	return connections, nil
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	address, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(address.Unmap(), port)
}
