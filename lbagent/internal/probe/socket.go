// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/socketfilter"
)

const (
	// trafficClass is CS6, the class of routing protocols.
	trafficClass = 0xc0
	// buffer holds the answers of thousands of nodes, in bytes.
	buffer = 1 << 20
)

type socket struct {
	fd    int
	local netip.AddrPort
	// drops is the kernel's counter at the last call of dropped.
	drops uint32
}

func openSocket(local netip.AddrPort, secret uint32) (*socket, error) {
	family := unix.AF_INET6
	if local.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for probes: %w", err)
	}
	s := &socket{fd: fd, local: local}
	if err := s.setUp(family, secret); err != nil {
		return nil, errors.Join(fmt.Errorf("open the socket for probes at %s: %w", local, err), s.Close())
	}
	return s, nil
}

func (s *socket) setUp(family int, secret uint32) error {
	if err := socketfilter.Attach(s.fd, answerFilter(secret)); err != nil {
		return err
	}
	if err := socketfilter.IgnorePathMTU(s.fd, family == unix.AF_INET6); err != nil {
		return err
	}
	// Both are optional: without them answers may be late or lost in large clusters.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer); err != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	if family == unix.AF_INET {
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_TOS, trafficClass)
	} else {
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, trafficClass)
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
		// Answers have no UDP checksum (RFC 6935); their tag covers the contents.
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			return err
		}
	}
	return unix.Bind(s.fd, sockaddr(s.local))
}

// answerFilter accepts datagrams with the secret, which hosts that see no probe do not know. Otherwise a
// flood could fill the queue, answers would be lost, and nodes would appear dead.
func answerFilter(secret uint32) []bpf.Instruction {
	// The program starts at the UDP header. A load beyond a short packet drops it.
	const header = 8
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: header + nonceAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: bits.ReverseBytes32(secret), SkipFalse: 1},
		bpf.RetConstant{Val: ^uint32(0)},
		bpf.RetConstant{},
	}
}

func (s *socket) dropped() uint64 {
	drops := socketfilter.Drops(s.fd)
	since := drops - s.drops
	s.drops = drops
	return uint64(since)
}

// Close closes the socket.
func (s *socket) Close() error { return unix.Close(s.fd) }

func (s *socket) send(to netip.Addr, b []byte) error {
	return unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, sockaddr(netip.AddrPortFrom(to, Port)))
}

func (s *socket) receive(b []byte) (n int, from netip.AddrPort, ok bool) {
	n, address, err := unix.Recvfrom(s.fd, b, unix.MSG_DONTWAIT)
	if err != nil {
		return 0, netip.AddrPort{}, false
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		from = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		from = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return n, from, true
}

func sockaddr(address netip.AddrPort) unix.Sockaddr {
	if address.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()}
}
