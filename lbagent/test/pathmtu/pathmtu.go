// SPDX-License-Identifier: Apache-2.0

// Package pathmtu forges what untrusted hosts can say of a path's MTU, in a test's network
// namespace.
package pathmtu

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MTU is what is forged.
const MTU = 1280

// Addresses of a namespace's only link, and of nobody on it.
var (
	Local4  = netip.MustParseAddr("198.51.100.1")
	Local6  = netip.MustParseAddr("2001:db8:51::1")
	Remote4 = netip.MustParseAddr("198.51.100.2")
	Remote6 = netip.MustParseAddr("2001:db8:51::2")
)

// Link makes the link.
func Link(t *testing.T) {
	t.Helper()
	for _, command := range []string{
		"link set lo up", "link add eth0 type veth peer name eth1", "link set eth0 up", "link set eth1 up",
		"address add 198.51.100.1/24 dev eth0", "address add 2001:db8:51::1/64 dev eth0 nodad",
	} {
		if output, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, output)
		}
	}
}

// Forge sends an ICMP error to an address of the namespace: that a datagram between these was too
// big for the path.
func Forge(t *testing.T, from, to netip.AddrPort) {
	t.Helper()
	if err := forge(from, to); err != nil {
		t.Fatalf("forge an ICMP error: %v", err)
	}
}

func forge(from, to netip.AddrPort) error {
	const longer, header = 1400, 8
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = append(udp, 0, header, 0, 0)
	family, protocol := unix.AF_INET6, unix.IPPROTO_ICMPV6
	// Packet too big (RFC 4443, section 3.2), and fragmentation needed (RFC 1191).
	message := binary.BigEndian.AppendUint32([]byte{2, 0, 0, 0}, MTU)
	var ip []byte
	if from.Addr().Is4() {
		family, protocol = unix.AF_INET, unix.IPPROTO_ICMP
		message = []byte{3, 4, 0, 0, 0, 0, MTU >> 8, MTU & 0xff}
		ip = []byte{0x45, 0, longer >> 8, longer & 0xff, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0}
	} else {
		ip = []byte{0x60, 0, 0, 0, longer >> 8, longer & 0xff, unix.IPPROTO_UDP, 64}
	}
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	message = append(append(message, ip...), udp...)
	if from.Addr().Is4() {
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("open a raw socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if from.Addr().Is4() {
		return unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: from.Addr().As4()})
	}
	return unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: from.Addr().As16()})
}

// checksum is that of RFC 1071 over an even number of octets.
func checksum(octets []byte) uint16 {
	var sum uint32
	for ; len(octets) > 1; octets = octets[2:] {
		sum += uint32(binary.BigEndian.Uint16(octets))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// Learned is the MTU that the kernel has learned of the path to an address; zero means none.
func Learned(t *testing.T, to netip.Addr) int {
	t.Helper()
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) != 1 {
		t.Fatalf("the route to %s: %v, %v", to, routes, err)
	}
	return routes[0].MTU
}
