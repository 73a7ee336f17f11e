// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// TCP flags (RFC 9293, section 3.1).
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

type floodPacket struct {
	socketPair
	inner netip.AddrPort
	size  int
	// random is the source of all arbitrary fields.
	random uint64
}

type floodKind func(p floodPacket) []byte

var floodKinds = map[string]floodKind{
	"syn":        segmentsWith(tcpSYN),
	"ack":        segmentsWith(tcpACK),
	"rst":        segmentsWith(tcpRST),
	"fin":        segmentsWith(tcpFIN | tcpACK),
	"udp":        func(p floodPacket) []byte { return udpPacket(p.socketPair, p.size) },
	"fragment":   fragmentPacket,
	"icmp-error": errorPacket,
	"tunnel":     tunnelPacket,
}

func kindNames() string { return strings.Join(slices.Sorted(maps.Keys(floodKinds)), ", ") }

func segmentsWith(flags byte) floodKind {
	return func(p floodPacket) []byte {
		return tcpPacket(p.socketPair, flags, uint32(p.random), uint32(p.random>>32))
	}
}

// fragmentPacket returns a random first or last fragment (RFC 791 section 3.2, RFC 8200 section 4.5).
func fragmentPacket(p floodPacket) []byte {
	const firstBytes = 256
	last := p.random&1 != 0
	whole := udpPacket(p.socketPair, firstBytes+p.size)
	identification := uint32(p.random >> 32)
	if p.to.Addr().Is4() {
		header, datagram := whole[:ipv4Header], whole[ipv4Header:]
		offset := uint16(1 << 13) // more fragments
		payload := datagram[:firstBytes]
		if last {
			offset, payload = firstBytes/8, datagram[firstBytes:]
		}
		binary.BigEndian.PutUint16(header[2:], uint16(ipv4Header+len(payload)))
		binary.BigEndian.PutUint16(header[4:], uint16(identification))
		binary.BigEndian.PutUint16(header[6:], offset)
		binary.BigEndian.PutUint16(header[10:], 0)
		binary.BigEndian.PutUint16(header[10:], checksum(header, 0))
		return append(header[:ipv4Header:ipv4Header], payload...)
	}
	header, datagram := whole[:ipv6Header], whole[ipv6Header:]
	extension := make([]byte, 8)
	extension[0], header[6] = header[6], unix.IPPROTO_FRAGMENT
	offset, payload := uint16(1), datagram[:firstBytes] // 1: more fragments
	if last {
		offset, payload = firstBytes, datagram[firstBytes:]
	}
	binary.BigEndian.PutUint16(extension[2:], offset)
	binary.BigEndian.PutUint32(extension[4:], identification)
	binary.BigEndian.PutUint16(header[4:], uint16(len(extension)+len(payload)))
	return slices.Concat(header, extension, payload)
}

// errorPacket returns a router's ICMP "too big" about a packet of the VIP (RFC 1191 section 4, RFC 4443
// section 3.2).
func errorPacket(p floodPacket) []byte {
	const mtu = 1400
	about := tcpPacket(socketPair{from: p.to, to: p.from}, tcpACK, uint32(p.random), uint32(p.random>>32))
	message := make([]byte, 8, 8+len(about))
	binary.BigEndian.PutUint16(message[6:], mtu)
	if p.to.Addr().Is4() {
		message[0], message[1] = 3, 4
		message = append(message, about[:ipv4Header+8]...)
		binary.BigEndian.PutUint16(message[2:], checksum(message, 0))
		return ipHeader(p.socketPair, unix.IPPROTO_ICMP, message)
	}
	message[0] = 2
	return ipPacket(p.socketPair, unix.IPPROTO_ICMPV6, append(message, about...), 2)
}

// The tunnel format of bpf/src/geneve.h.
const (
	tunnelPort  = 6081
	tunnelVNI   = 0x4d4c52
	optionClass = 0xff4d
	pathOption  = 0x82
	tagOption   = 0x11
)

// tunnelPacket returns a tunnel packet with a spoofed node address, forged path and tag options, and a SYN
// from a spoofed client.
func tunnelPacket(p floodPacket) []byte {
	inner := tcpPacket(socketPair{from: client(p), to: p.inner}, tcpSYN, uint32(p.random), 0)
	protocol := uint16(unix.ETH_P_IPV6)
	if p.inner.Addr().Is4() {
		protocol = unix.ETH_P_IP
	}
	var payload []byte
	payload = append(payload, 6, 0x40) // six words of options, some of them critical
	payload = binary.BigEndian.AppendUint16(payload, protocol)
	payload = binary.BigEndian.AppendUint32(payload, tunnelVNI<<8)
	for _, option := range []byte{pathOption, tagOption} {
		payload = binary.BigEndian.AppendUint16(payload, optionClass)
		payload = append(payload, option, 2)
		payload = binary.BigEndian.AppendUint64(payload, p.random*uint64(option))
	}
	datagram := make([]byte, udpHeader, udpHeader+len(payload)+len(inner))
	binary.BigEndian.PutUint16(datagram[0:], p.from.Port())
	binary.BigEndian.PutUint16(datagram[2:], tunnelPort)
	datagram = append(append(datagram, payload...), inner...)
	binary.BigEndian.PutUint16(datagram[4:], uint16(len(datagram)))
	return ipPacket(p.socketPair, unix.IPPROTO_UDP, datagram, 6)
}

func client(p floodPacket) netip.AddrPort {
	address := p.inner.Addr().AsSlice()
	binary.BigEndian.PutUint16(address[len(address)-2:], uint16(p.random>>48))
	from, _ := netip.AddrFromSlice(address)
	return netip.AddrPortFrom(from, p.from.Port())
}
