// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// groupsPerSocket is the number of groups per socket, limited by net.core.optmem_max.
const groupsPerSocket = 100

// groups joins IPv6 multicast groups, so that MLD snooping switches (RFC 4541) and the NIC deliver their
// frames.
type groups struct {
	index int
	// joined maps a group to its socket, used a socket to its number of groups.
	joined map[netip.Addr]int
	used   map[int]int
}

func (g *groups) set(wanted map[netip.Addr]bool) error {
	for group, socket := range g.joined {
		if !wanted[group] {
			g.leave(group, socket)
		}
	}
	for group := range wanted {
		if _, joined := g.joined[group]; joined {
			continue
		}
		if err := g.join(group); err != nil {
			return fmt.Errorf("join the solicited-node group %s of an IPv6 VIP: %w", group, err)
		}
	}
	return nil
}

func (g *groups) join(group netip.Addr) error {
	socket := -1
	for candidate, used := range g.used {
		if used < groupsPerSocket {
			socket = candidate
		}
	}
	if socket < 0 {
		var err error
		if socket, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open a socket: %w", err)
		}
		if g.used == nil {
			g.used = map[int]int{}
		}
		g.used[socket] = 0
	}
	if err := unix.SetsockoptIPv6Mreq(socket, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, g.request(group)); err != nil {
		g.release(socket)
		return err
	}
	g.joined[group] = socket
	g.used[socket]++
	return nil
}

func (g *groups) request(group netip.Addr) *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(g.index)}
}

// leave ignores errors: if the interface is gone, the kernel has left the group.
func (g *groups) leave(group netip.Addr, socket int) {
	_ = unix.SetsockoptIPv6Mreq(socket, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, g.request(group))
	delete(g.joined, group)
	g.used[socket]--
	g.release(socket)
}

func (g *groups) release(socket int) {
	if g.used[socket] == 0 {
		_ = unix.Close(socket)
		delete(g.used, socket)
	}
}

func (g *groups) close() {
	for socket := range g.used {
		_ = unix.Close(socket)
	}
	g.used, g.joined = nil, map[netip.Addr]int{}
}
