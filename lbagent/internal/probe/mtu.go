// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// longEvery specifies after how many probes to a node one is as long as the MTU.
	longEvery = 20
	// longest bounds the length of a packet: the MTU of the loopback, for one, is 64 KiB.
	longest = 9216
)

// roomTo returns the payload of the longest datagram to an address that the kernel's route takes in
// one packet, or 0 if there is no route.
func roomTo(to netip.Addr) int {
	family, level, option, headers := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU, 20+8
	if to.Is6() {
		family, level, option, headers = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU, 40+8
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	// It was only connected to select the route.
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, Port))); err != nil {
		return 0
	}
	mtu, err := unix.GetsockoptInt(fd, level, option)
	if err != nil {
		return 0
	}
	return max(0, min(mtu, longest)-headers)
}
