// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/socketfilter"
)

// UDP ports (RFC 5881, section 4; RFC 5883, section 5).
const (
	singleHopPort = 3784
	multihopPort  = 4784
	firstSource   = 49152
	lastSource    = 65535
)

const (
	// trafficClass is CS6, network control (RFC 4594, section 3.2).
	trafficClass = 0xc0
	// socketPriority is TC_PRIO_INTERACTIVE, the highest without a capability.
	socketPriority = 6
	sentTTL        = 255
	// maxPacket exceeds the maximum packet size, whose length field is one byte.
	maxPacket = 256
)

// kind selects the listener of a session: an address family and a port.
type kind struct {
	v6, multihop bool
}

func (k kind) port() int {
	if k.multihop {
		return multihopPort
	}
	return singleHopPort
}

// datagram is a received packet with the fields to verify by RFC 5881.
type datagram struct {
	payload []byte
	from    netip.Addr
	// scope is the interface index of a link-local sender, else 0.
	scope uint32
	ttl   int
}

func listen(k kind, admits admission) (int, error) {
	fd, err := udpSocket(k.v6)
	if err != nil {
		return -1, err
	}
	level, option := unix.IPPROTO_IP, unix.IP_RECVTTL
	if k.v6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT
	}
	err = unix.SetsockoptInt(fd, level, option, 1)
	if err == nil {
		// Attached before bind, so that no packet bypasses it.
		err = admit(fd, admits, k.v6)
	}
	if err == nil {
		err = unix.Bind(fd, anyAddress(k.v6, k.port()))
	}
	if err == nil {
		return fd, nil
	}
	_ = unix.Close(fd)
	if errors.Is(err, unix.EADDRINUSE) {
		return -1, fmt.Errorf("UDP port %d is in use by another BFD program on this node", k.port())
	}
	return -1, fmt.Errorf("listen on UDP port %d: %w", k.port(), err)
}

// sender opens the sending socket of a session, with a separate source port (RFC 5881, section 4).
func sender(source netip.Addr, v6 bool) (int, error) {
	fd, err := udpSocket(v6)
	if err != nil {
		return -1, err
	}
	level, ttl, class := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_TOS
	if v6 {
		level, ttl, class = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS
	}
	for _, option := range []struct{ level, name, value int }{
		{level, ttl, sentTTL}, {level, class, trafficClass}, {unix.SOL_SOCKET, unix.SO_PRIORITY, socketPriority},
	} {
		if err := unix.SetsockoptInt(fd, option.level, option.name, option.value); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("set options of a socket: %w", err)
		}
	}
	scope, err := scopeOf(source)
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	// Ports are random, so 100 attempts fail only if nearly all are in use.
	for range 100 {
		err = unix.Bind(fd, socketAddress(source, v6, firstSource+rand.IntN(lastSource-firstSource+1), scope))
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("bind to a source port of %d to %d: %w", firstSource, lastSource, err)
	}
	return fd, nil
}

func udpSocket(v6 bool) (int, error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open a UDP socket: %w", err)
	}
	err = socketfilter.IgnorePathMTU(fd, v6)
	if err == nil && v6 {
		if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			err = fmt.Errorf("restrict a socket to IPv6: %w", err)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func anyAddress(v6 bool, port int) unix.Sockaddr {
	return socketAddress(netip.Addr{}, v6, port, 0)
}

// socketAddress encodes an address; an invalid one is the wildcard.
func socketAddress(address netip.Addr, v6 bool, port int, scope uint32) unix.Sockaddr {
	if !v6 {
		to := &unix.SockaddrInet4{Port: port}
		if address.Is4() {
			to.Addr = address.As4()
		}
		return to
	}
	to := &unix.SockaddrInet6{Port: port, ZoneId: scope}
	if address.Is6() {
		to.Addr = address.As16()
	}
	return to
}

func receive(fd int, payload, control []byte) (datagram, bool) {
	n, controlled, _, from, err := unix.Recvmsg(fd, payload, control, unix.MSG_DONTWAIT)
	if err != nil {
		return datagram{}, false
	}
	d := datagram{payload: payload[:n], ttl: ttlOf(control[:controlled])}
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		d.from = netip.AddrFrom4(from.Addr)
	case *unix.SockaddrInet6:
		d.from = netip.AddrFrom16(from.Addr)
		if d.from.IsLinkLocalUnicast() {
			d.scope = from.ZoneId
		}
	}
	return d, true
}

// ttlOf returns the TTL or hop limit of the control messages, or -1.
func ttlOf(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		v4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL
		v6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if (v4 || v6) && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return -1
}

func scopeOf(address netip.Addr) (uint32, error) {
	if address.Zone() == "" {
		return 0, nil
	}
	device, err := net.InterfaceByName(address.Zone())
	if err != nil {
		return 0, fmt.Errorf("interface %s of the peer: %w", address.Zone(), err)
	}
	return uint32(device.Index), nil
}
