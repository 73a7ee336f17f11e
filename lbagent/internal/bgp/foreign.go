// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// bgpPort is where BGP speakers listen (RFC 4271, section 8.2.1).
const bgpPort = 179

// foreign says which other process of this node has a connection with the peer's router, such
// as the BGP speaker of a CNI: routers take one session from an address. It is empty where none
// is seen.
func foreign(peer *model.Peer) string {
	family := uint8(unix.AF_INET)
	if peer.Address.Is6() {
		family = unix.AF_INET6
	}
	families := []uint8{family}
	if family == unix.AF_INET {
		// Who listens for both families gets IPv4 as mapped addresses of IPv6.
		families = append(families, unix.AF_INET6)
	}
	var connections []connected
	for _, family := range families {
		// Without an answer nothing is known, and nothing more can be told.
		sockets, err := netlink.SocketDiagTCP(family)
		if err != nil {
			continue
		}
		for _, socket := range sockets {
			if socket.State != netlink.TCP_ESTABLISHED {
				continue
			}
			connections = append(connections, connected{
				local:  netip.AddrPortFrom(addressOf(socket.ID.Source), socket.ID.SourcePort),
				remote: netip.AddrPortFrom(addressOf(socket.ID.Destination), socket.ID.DestinationPort),
				inode:  uint64(socket.INode),
			})
		}
	}
	return describeForeign(peer, connections, ownInodes)
}

// connected is an established TCP connection of the node.
type connected struct {
	local, remote netip.AddrPort
	inode         uint64
}

// describeForeign finds the first of the connections that is one with the peer's router and
// whose inode is none of our own, which are asked for only then.
func describeForeign(peer *model.Peer, connections []connected, own func() map[uint64]bool) string {
	connections = slices.DeleteFunc(connections, func(c connected) bool {
		return c.remote.Addr() != peer.Address.WithZone("") || c.remote.Port() != peer.Port && c.local.Port() != bgpPort
	})
	if len(connections) == 0 {
		return ""
	}
	ours := own()
	for _, c := range connections {
		if !ours[c.inode] {
			return fmt.Sprintf("another process of this node has a connection with the router, from %s to %s: "+
				"the router takes one session from an address", c.local, c.remote)
		}
	}
	return ""
}

// ownInodes are those of this process's descriptors.
func ownInodes() map[uint64]bool {
	inodes := map[uint64]bool{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return inodes
	}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		var status unix.Stat_t
		// A descriptor may be closed meanwhile.
		if unix.Fstat(fd, &status) == nil {
			inodes[status.Ino] = true
		}
	}
	return inodes
}

func addressOf(ip net.IP) netip.Addr {
	address, _ := netip.AddrFromSlice(ip)
	return address.Unmap()
}
