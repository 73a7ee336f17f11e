// SPDX-License-Identifier: Apache-2.0

// Package reference is a model of stage 1 and stage 2 according to docs/design.md, for a differential test of
// the programs. It predicts the final node and form of a client's packet, but not its path.
//
// The model omits fragments, IPv6 extension headers other than options and routing, protocols other than TCP
// and UDP, nodes with different tables, and endpoints that are removed during flows.
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
	// 802.1Q and 802.1ad.
	etherTypeVLAN, etherTypeServiceVLAN = 0x8100, 0x88a8
	vlanLength, maxVLANs                = 4, 2

	// TCP is the IP protocol number.
	TCP = 6
	// UDP is the IP protocol number.
	UDP = 17

	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// Flow identifies a flow by the addresses of the client's packets.
type Flow struct {
	Client, VIP netip.AddrPort
	Protocol    uint8
}

// packet is a parsed frame.
type packet struct {
	Flow
	flags        byte
	acknowledged uint32
	// l3 and l4 are the offsets of the IP and the TCP or UDP header; end is the end of the IP packet.
	l3, l4, end int
}

type reading int

const (
	// notIP: no destination address.
	notIP reading = iota
	// addressed: the destination is known, but the packet is not modelled.
	addressed
	// malformed: shorter than its headers require.
	malformed
	sourceRouted
	// overextended: too many extension headers.
	overextended
	// plain: TCP or UDP, possibly after allowed options or extension headers.
	plain
)

func parse(frame []byte) (packet, reading) {
	p := packet{l3: ethernetLength}
	if len(frame) < p.l3 {
		return p, notIP
	}
	etherType := binary.BigEndian.Uint16(frame[12:])
	for range maxVLANs {
		if etherType != etherTypeVLAN && etherType != etherTypeServiceVLAN {
			break
		}
		p.l3 += vlanLength
		if len(frame) < p.l3 {
			return p, notIP
		}
		etherType = binary.BigEndian.Uint16(frame[p.l3-2:])
	}
	switch etherType {
	case etherTypeIPv4:
		return p.parseIPv4(frame)
	case etherTypeIPv6:
		return p.parseIPv6(frame)
	default:
		return p, notIP
	}
}

func (p packet) parseIPv4(frame []byte) (packet, reading) {
	if len(frame) < p.l3+ipv4Length {
		return p, notIP
	}
	ip := frame[p.l3:]
	p.end = p.l3 + int(binary.BigEndian.Uint16(ip[2:]))
	p.l4 = p.l3 + 4*int(ip[0]&0xf)
	p.Protocol = ip[9]
	p.Client = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), 0)
	p.VIP = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:])), 0)
	const moreAndOffset = 0x3fff
	if binary.BigEndian.Uint16(ip[6:])&moreAndOffset != 0 {
		return p, addressed
	}
	if ip[0]>>4 != 4 || p.l4 < p.l3+ipv4Length {
		return p, malformed
	}
	if reading := readOptions(frame, p.l3+ipv4Length, p.l4); reading != plain {
		return p, reading
	}
	return p.parseL4(frame)
}

// readOptions searches the IPv4 options between two offsets for source routes (RFC 791 section 3.1, RFC 7126).
func readOptions(frame []byte, from, to int) reading {
	const end, none, loose, strict = 0, 1, 131, 137
	if to > len(frame) {
		return malformed
	}
	for at := from; at < to; {
		switch {
		case frame[at] == end:
			return plain
		case frame[at] == none:
			at++
		case frame[at] == loose || frame[at] == strict:
			return sourceRouted
		case at+1 >= to || frame[at+1] < 2 || at+int(frame[at+1]) > to:
			return malformed
		default:
			at += int(frame[at+1])
		}
	}
	return plain
}

func (p packet) parseIPv6(frame []byte) (packet, reading) {
	if len(frame) < p.l3+ipv6Length {
		return p, notIP
	}
	ip := frame[p.l3:]
	p.l4 = p.l3 + ipv6Length
	p.end = p.l4 + int(binary.BigEndian.Uint16(ip[4:]))
	p.Protocol = ip[6]
	p.Client = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[8:])), 0)
	p.VIP = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[24:])), 0)
	if ip[0]>>4 != 6 {
		return p, malformed
	}
	return p.parseExtensions(frame)
}

// parseExtensions parses up to six extension headers in 256 bytes. The first error applies; truncation is
// checked last. Routing headers of type 0 or with segments left are errors (RFC 5095).
func (p packet) parseExtensions(frame []byte) (packet, reading) {
	const hopByHop, routing, destination = 0, 43, 60
	first := p.l4
	for count := 0; ; count++ {
		switch p.Protocol {
		case TCP, UDP:
			return p.parseL4(frame)
		case hopByHop:
			if count > 0 {
				return p, malformed // RFC 8200 section 4.1
			}
		case routing, destination:
		default:
			return p, addressed
		}
		if p.l4+4 > len(frame) {
			return p, malformed
		}
		header := frame[p.l4:]
		if p.Protocol == routing && (header[2] == 0 || header[3] > 0) {
			return p, sourceRouted
		}
		p.Protocol = header[0]
		p.l4 += 8 * (1 + int(header[1]))
		if count == 6 || p.l4-first > 256 {
			return p, overextended
		}
	}
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
		p.flags, p.acknowledged = l4[13], binary.BigEndian.Uint32(l4[8:])
	}
	return p, plain
}

// midstream reports whether the packet does not start a connection.
func (p packet) midstream() bool {
	return p.Protocol == TCP && p.flags&(flagSYN|flagACK) != flagSYN
}

// askable reports whether the packet starts a flow and may be refused.
func (p packet) askable() bool {
	return !p.midstream() && (p.Protocol != TCP || p.flags&(flagRST|flagFIN) == 0)
}
