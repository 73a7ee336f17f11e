// SPDX-License-Identifier: Apache-2.0

package canary

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
)

const (
	ipv4Header, ipv6Header, udpHeader = 20, 40, 8
	hopLimit                          = 64
	// longest is the longest datagram that is read.
	longest = 1 << 16
)

func headers(address netip.Addr) int {
	if address.Is4() {
		return ipv4Header + udpHeader
	}
	return ipv6Header + udpHeader
}

// source is one address of this node with its ports. Answers come to ordinary sockets there. Probes
// leave by a packet socket: the kernel's routes may lead to the canary by another router.
type source struct {
	address netip.Addr
	ports   [canary.Ports]*net.UDPConn
	numbers [canary.Ports]uint16
	packets int
}

// openSource has what comes to the ports given to take.
func openSource(address netip.Addr, take func(source netip.Addr, at int, from netip.AddrPort, payload []byte)) (*source, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket for probes through routers: %w", err)
	}
	s := &source{address: address, packets: fd}
	for at := range s.ports {
		config := net.ListenConfig{Control: takeWithoutChecksum}
		connection, err := config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(address, 0).String())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open a port at %s for probes through routers: %w", address, err), s.Close())
		}
		// It was asked for UDP.
		s.ports[at], _ = connection.(*net.UDPConn)
		s.numbers[at] = connection.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	}
	for at := range s.ports {
		go s.read(at, take)
	}
	return s, nil
}

// takeWithoutChecksum is for IPv6, where answers come without a checksum (RFC 6935): their tag covers
// them.
func takeWithoutChecksum(network, _ string, c syscall.RawConn) (err error) {
	if network != "udp6" {
		return nil
	}
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
	})
	return errors.Join(failed, err)
}

// Close closes the ports, and ends what reads from them.
func (s *source) Close() error {
	failures := []error{unix.Close(s.packets)}
	for _, connection := range s.ports {
		if connection != nil {
			failures = append(failures, connection.Close())
		}
	}
	return errors.Join(failures...)
}

// read ends when the port is closed.
func (s *source) read(at int, take func(source netip.Addr, at int, from netip.AddrPort, payload []byte)) {
	payload := make([]byte, longest)
	for {
		n, from, err := s.ports[at].ReadFromUDPAddrPort(payload)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			take(s.address, at, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), payload[:n])
		}
	}
}

// send sends a datagram to the Geneve port of a canary, by a router.
func (s *source) send(by netdev.Way, at int, to netip.Addr, payload []byte) error {
	packet, protocol := encode(s.address, to, s.numbers[at], payload)
	link := &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: by.Interface, Halen: 6}
	copy(link.Addr[:], by.MAC[:])
	return unix.Sendto(s.packets, packet, unix.MSG_DONTWAIT, link)
}

// encode writes an IP packet that routers may not fragment, and the number of its protocol.
func encode(from, to netip.Addr, port uint16, payload []byte) (packet []byte, protocol uint16) {
	length := udpHeader + len(payload)
	datagram := make([]byte, length)
	binary.BigEndian.PutUint16(datagram, port)
	binary.BigEndian.PutUint16(datagram[2:], probe.Port)
	binary.BigEndian.PutUint16(datagram[4:], uint16(length))
	copy(datagram[udpHeader:], payload)
	pseudo := sum(sum(sum(uint32(unix.IPPROTO_UDP)+uint32(length), from.AsSlice()), to.AsSlice()), datagram)
	checksum := fold(pseudo)
	if checksum == 0 {
		checksum = 0xffff
	}
	binary.BigEndian.PutUint16(datagram[6:], checksum)
	if from.Is4() {
		header := make([]byte, ipv4Header, ipv4Header+length)
		header[0] = 0x45
		binary.BigEndian.PutUint16(header[2:], uint16(ipv4Header+length))
		// Don't fragment.
		header[6], header[8], header[9] = 0x40, hopLimit, unix.IPPROTO_UDP
		copy(header[12:], from.AsSlice())
		copy(header[16:], to.AsSlice())
		binary.BigEndian.PutUint16(header[10:], fold(sum(0, header)))
		return append(header, datagram...), unix.ETH_P_IP
	}
	header := make([]byte, ipv6Header, ipv6Header+length)
	header[0] = 0x60
	binary.BigEndian.PutUint16(header[4:], uint16(length))
	header[6], header[7] = unix.IPPROTO_UDP, hopLimit
	copy(header[8:], from.AsSlice())
	copy(header[24:], to.AsSlice())
	return append(header, datagram...), unix.ETH_P_IPV6
}

// sum adds 16-bit words (RFC 1071).
func sum(start uint32, b []byte) uint32 {
	for i := 0; i+1 < len(b); i += 2 {
		start += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		start += uint32(b[len(b)-1]) << 8
	}
	return start
}

func fold(sum uint32) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
