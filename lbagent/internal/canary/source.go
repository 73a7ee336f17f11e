// SPDX-License-Identifier: Apache-2.0

package canary

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
	"github.com/millrace-lb/millrace/lbagent/internal/socketfilter"
)

const (
	ipv4Header, ipv6Header, udpHeader = 20, 40, 8
	hopLimit                          = 64
	maxPacket                         = 1 << 16
)

func headers(address netip.Addr) int {
	if address.Is4() {
		return ipv4Header + udpHeader
	}
	return ipv6Header + udpHeader
}

// source is one address of this node with its ports. Ordinary sockets receive the answers. Probes are
// sent by a packet socket, because the kernel's routes may lead to the canary through another router.
type source struct {
	address netip.Addr
	ports   [canary.Ports]*net.UDPConn
	numbers [canary.Ports]uint16
	packets int
}

func openSource(address netip.Addr, take func(source netip.Addr, at int, from netip.AddrPort, payload []byte)) (*source, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket for probes through routers: %w", err)
	}
	s := &source{address: address, packets: fd}
	for at := range s.ports {
		config := net.ListenConfig{Control: setOptions}
		connection, err := config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(address, 0).String())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open a port at %s for probes through routers: %w", address, err), s.Close())
		}
		s.ports[at], _ = connection.(*net.UDPConn)
		s.numbers[at] = connection.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	}
	for at := range s.ports {
		go s.read(at, take)
	}
	return s, nil
}

// setOptions sets the socket options of a port. Answers over IPv6 have no checksum (RFC 6935), because
// their tag covers them.
func setOptions(network, _ string, c syscall.RawConn) (err error) {
	v6 := network == "udp6"
	failed := c.Control(func(fd uintptr) {
		err = socketfilter.IgnorePathMTU(int(fd), v6)
		if err == nil && v6 {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
		}
	})
	return errors.Join(failed, err)
}

// Close closes the ports and ends their goroutines.
func (s *source) Close() error {
	failures := []error{unix.Close(s.packets)}
	for _, connection := range s.ports {
		if connection != nil {
			failures = append(failures, connection.Close())
		}
	}
	return errors.Join(failures...)
}

func (s *source) read(at int, take func(source netip.Addr, at int, from netip.AddrPort, payload []byte)) {
	payload := make([]byte, maxPacket)
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

func (s *source) send(by netdev.NextHop, at int, to netip.Addr, payload []byte) error {
	packet, protocol, err := encode(s.address, to, s.numbers[at], payload)
	if err != nil {
		return err
	}
	link := &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: by.Interface, Halen: 6}
	copy(link.Addr[:], by.MAC[:])
	return unix.Sendto(s.packets, packet, unix.MSG_DONTWAIT, link)
}

// encode returns an IP packet that routers may not fragment, and its EtherType.
func encode(from, to netip.Addr, port uint16, payload []byte) (packet []byte, protocol uint16, err error) {
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	protocol = unix.ETH_P_IP
	if from.Is4() {
		ip = &layers.IPv4{
			Version: 4, IHL: ipv4Header / 4, Flags: layers.IPv4DontFragment, TTL: hopLimit, Protocol: layers.IPProtocolUDP,
			SrcIP: from.AsSlice(), DstIP: to.AsSlice(),
		}
	} else {
		protocol = unix.ETH_P_IPV6
		ip = &layers.IPv6{
			Version: 6, HopLimit: hopLimit, NextHeader: layers.IPProtocolUDP, SrcIP: from.AsSlice(), DstIP: to.AsSlice(),
		}
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(port), DstPort: layers.UDPPort(probe.Port)}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, 0, fmt.Errorf("write a probe from %s to %s: %w", from, to, err)
	}
	buffer, options := gopacket.NewSerializeBuffer(), gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, ip, udp, gopacket.Payload(payload)); err != nil {
		return nil, 0, fmt.Errorf("write a probe from %s to %s: %w", from, to, err)
	}
	return buffer.Bytes(), protocol, nil
}
