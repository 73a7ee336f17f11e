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

const bgpPort = 179

// otherSpeaker describes a connection of another process of this node, such as a CNI's BGP speaker, to the
// router, or returns an empty string. Routers accept one session from an address.
func otherSpeaker(peer *model.Peer) string {
	family := uint8(unix.AF_INET)
	if peer.Address.Is6() {
		family = unix.AF_INET6
	}
	families := []uint8{family}
	if family == unix.AF_INET {
		// Dual-stack sockets have IPv4-mapped addresses.
		families = append(families, unix.AF_INET6)
	}
	var connections []netdev.Connection
	for _, family := range families {
		if some, err := netdev.Connections(family); err == nil {
			connections = append(connections, some...)
		}
	}
	return describeSpeaker(peer, connections, ownInodes)
}

// describeSpeaker calls own only if there is a connection with the peer's router.
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
				"a router accepts one session per address", c.Local, c.Remote)
		}
	}
	return ""
}

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
		if unix.Fstat(fd, &status) == nil {
			inodes[status.Ino] = true
		}
	}
	return inodes
}
