// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// bgpPort is where BGP speakers listen (RFC 4271, section 8.2.1).
const bgpPort = 179

// otherSpeaker says which other process of this node has a connection with the peer's router, such
// as the BGP speaker of a CNI: routers take one session from an address. It is empty where none
// is seen.
func otherSpeaker(peer *model.Peer) string {
	family := uint8(unix.AF_INET)
	if peer.Address.Is6() {
		family = unix.AF_INET6
	}
	families := []uint8{family}
	if family == unix.AF_INET {
		// Who listens for both families gets IPv4 as mapped addresses of IPv6.
		families = append(families, unix.AF_INET6)
	}
	var connections []netdev.Connection
	for _, family := range families {
		// Without an answer nothing is known, and nothing more can be told.
		if some, err := netdev.Connections(family); err == nil {
			connections = append(connections, some...)
		}
	}
	return describeSpeaker(peer, connections, ownInodes)
}

// describeSpeaker finds the first of the connections that is one with the peer's router and
// whose inode is none of our own, which are asked for only then.
func describeSpeaker(peer *model.Peer, connections []netdev.Connection, own func() map[uint64]bool) string {
	connections = slices.DeleteFunc(connections, func(c netdev.Connection) bool {
		return c.Remote.Addr() != peer.Address.WithZone("") || c.Remote.Port() != peer.Port && c.Local.Port() != bgpPort
	})
	if len(connections) == 0 {
		return ""
	}
	ours := own()
	for _, c := range connections {
		if !ours[c.Inode] {
			return fmt.Sprintf("another process of this node has a connection with the router, from %s to %s: "+
				"the router takes one session from an address", c.Local, c.Remote)
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
