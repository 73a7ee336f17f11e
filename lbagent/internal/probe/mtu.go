// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// longEvery is the number of probes to a node per MTU-sized probe.
	longEvery = 20
	// maxPacket bounds the packet length, because the loopback's MTU is 64 KiB.
	maxPacket = 9216
)

func mtuTo(to netip.Addr) int {
	family, level, option, headers := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU, 20+8
	if to.Is6() {
		family, level, option, headers = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU, 40+8
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, Port))); err != nil {
		return 0
	}
	mtu, err := unix.GetsockoptInt(fd, level, option)
	if err != nil {
		return 0
	}
	return max(0, min(mtu, maxPacket)-headers)
}
