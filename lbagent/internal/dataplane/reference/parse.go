// SPDX-License-Identifier: Apache-2.0

// Package reference is a model of stage 1 and stage 2, written from docs/design.md, to
// which a differential test holds the programs. It says where in the cluster a packet of
// a client ends, and as what; by which way through the nodes is the programs' business.
//
// Outside the model are: IPv4 options, IPv6 extension headers, fragments, VLAN tags and
// other protocols than TCP and UDP; packets at the end of their TTL; nodes with different
// tables; changes of endpoints while flows last.
package reference

import (
	"encoding/binary"
	"net/netip"
)

const (
	ethernetLength = 14
	ipv4Length     = 20
	ipv6Length     = 40
	tcpLength      = 20
	udpLength      = 8

	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd

	// TCP is the IP protocol number.
	TCP = 6
	// UDP is the IP protocol number.
	UDP = 17

	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// Flow is a packet's addresses as the client sends it.
type Flow struct {
	Client, VIP netip.AddrPort
	Protocol    uint8
}

// packet is what is read of a frame.
type packet struct {
	Flow
	// flags of TCP.
	flags byte
	// l4 is the offset of the TCP or UDP header in the frame, end that behind the
	// IP packet.
	l4, end int
}

// reading is how far a frame could be read.
type reading int

const (
	// notIP: no destination could be read.
	notIP reading = iota
	// addressed: the destination could be read, and the model knows no more.
	addressed
	// malformed: shorter than its headers say.
	malformed
	// plain: TCP or UDP right behind an IP header without anything special.
	plain
)

func parse(frame []byte) (packet, reading) {
	switch {
	case len(frame) < ethernetLength:
		return packet{}, notIP
	case binary.BigEndian.Uint16(frame[12:]) == etherTypeIPv4:
		return parseIPv4(frame)
	case binary.BigEndian.Uint16(frame[12:]) == etherTypeIPv6:
		return parseIPv6(frame)
	default:
		return packet{}, notIP
	}
}

func parseIPv4(frame []byte) (packet, reading) {
	if len(frame) < ethernetLength+ipv4Length {
		return packet{}, notIP
	}
	ip := frame[ethernetLength:]
	p := packet{l4: ethernetLength + ipv4Length, end: ethernetLength + int(binary.BigEndian.Uint16(ip[2:]))}
	p.Protocol = ip[9]
	p.Client = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), 0)
	p.VIP = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:])), 0)
	const moreAndOffset = 0x3fff
	if ip[0] != 0x45 || binary.BigEndian.Uint16(ip[6:])&moreAndOffset != 0 || ip[8] < 2 {
		return p, addressed
	}
	return p.parseL4(frame)
}

func parseIPv6(frame []byte) (packet, reading) {
	if len(frame) < ethernetLength+ipv6Length {
		return packet{}, notIP
	}
	ip := frame[ethernetLength:]
	l4 := ethernetLength + ipv6Length
	p := packet{l4: l4, end: l4 + int(binary.BigEndian.Uint16(ip[4:]))}
	p.Protocol = ip[6]
	p.Client = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[8:])), 0)
	p.VIP = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[24:])), 0)
	if ip[0]>>4 != 6 || ip[7] < 2 {
		return p, addressed
	}
	return p.parseL4(frame)
}

func (p packet) parseL4(frame []byte) (packet, reading) {
	length := tcpLength
	switch p.Protocol {
	case TCP:
	case UDP:
		length = udpLength
	default:
		return p, addressed
	}
	if p.l4+length > p.end || p.end > len(frame) {
		return p, malformed
	}
	l4 := frame[p.l4:]
	p.Client = netip.AddrPortFrom(p.Client.Addr(), binary.BigEndian.Uint16(l4))
	p.VIP = netip.AddrPortFrom(p.VIP.Addr(), binary.BigEndian.Uint16(l4[2:]))
	if p.Protocol == TCP {
		p.flags = l4[13]
	}
	return p, plain
}

// midstream tells of a packet that belongs to a connection made earlier.
func (p packet) midstream() bool {
	return p.Protocol == TCP && p.flags&(flagSYN|flagACK) != flagSYN
}

// askable tells of a packet by which a client wants to connect and may be told that it
// cannot.
func (p packet) askable() bool {
	return !p.midstream() && (p.Protocol != TCP || p.flags&(flagRST|flagFIN) == 0)
}
