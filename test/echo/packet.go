// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	ipv4Header = 20
	ipv6Header = 40
	tcpHeader  = 20
	udpHeader  = 8
	hopLimit   = 64
)

type socketPair struct{ from, to netip.AddrPort }

// tcpPacket returns an IP packet with an empty segment (RFC 9293, section 3.1).
func tcpPacket(e socketPair, flags byte, sequence, acknowledged uint32) []byte {
	segment := make([]byte, tcpHeader)
	binary.BigEndian.PutUint16(segment[0:], e.from.Port())
	binary.BigEndian.PutUint16(segment[2:], e.to.Port())
	binary.BigEndian.PutUint32(segment[4:], sequence)
	if flags&tcpACK != 0 {
		binary.BigEndian.PutUint32(segment[8:], acknowledged)
	}
	segment[12] = tcpHeader / 4 << 4
	segment[13] = flags
	binary.BigEndian.PutUint16(segment[14:], 64<<10-1) // window
	return ipPacket(e, unix.IPPROTO_TCP, segment, 16)
}

// udpPacket returns an IP packet with a zero payload of the given size.
func udpPacket(e socketPair, payload int) []byte {
	datagram := make([]byte, udpHeader+payload)
	binary.BigEndian.PutUint16(datagram[0:], e.from.Port())
	binary.BigEndian.PutUint16(datagram[2:], e.to.Port())
	binary.BigEndian.PutUint16(datagram[4:], uint16(len(datagram)))
	return ipPacket(e, unix.IPPROTO_UDP, datagram, 6)
}

// ipPacket prepends an IP header and sets the transport checksum at the offset.
func ipPacket(e socketPair, protocol byte, transport []byte, checksumAt int) []byte {
	// Pseudo-header of RFC 9293, section 3.1, and RFC 8200, section 8.1.
	pseudo := append(e.from.Addr().AsSlice(), e.to.Addr().AsSlice()...)
	sum := checksum(transport, uint32(protocol)+uint32(len(transport))+uint32(^checksum(pseudo, 0)))
	if sum == 0 && protocol == unix.IPPROTO_UDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(transport[checksumAt:], sum)
	return ipHeader(e, protocol, transport)
}

func ipHeader(e socketPair, protocol byte, transport []byte) []byte {
	var packet []byte
	from, to := e.from.Addr().AsSlice(), e.to.Addr().AsSlice()
	if e.to.Addr().Is4() {
		packet = make([]byte, ipv4Header, ipv4Header+len(transport))
		packet[0] = 4<<4 | ipv4Header/4
		binary.BigEndian.PutUint16(packet[2:], uint16(ipv4Header+len(transport)))
		packet[8], packet[9] = hopLimit, protocol
		copy(packet[12:], from)
		copy(packet[16:], to)
		binary.BigEndian.PutUint16(packet[10:], checksum(packet, 0))
	} else {
		packet = make([]byte, ipv6Header, ipv6Header+len(transport))
		packet[0] = 6 << 4
		binary.BigEndian.PutUint16(packet[4:], uint16(len(transport)))
		packet[6], packet[7] = protocol, hopLimit
		copy(packet[8:], from)
		copy(packet[24:], to)
	}
	return append(packet, transport...)
}

// checksum returns the RFC 1071 checksum of bytes with an initial sum.
func checksum(bytes []byte, sum uint32) uint16 {
	for ; len(bytes) >= 2; bytes = bytes[2:] {
		sum += uint32(binary.BigEndian.Uint16(bytes))
	}
	if len(bytes) == 1 {
		sum += uint32(bytes[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
