// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// IP protocol numbers (IANA, Assigned Internet Protocol Numbers).
const (
	TCP  = 6
	UDP  = 17
	SCTP = 132
)

// ErrFamilies is returned when source and destination are of different address families.
var ErrFamilies = errors.New("source and destination must both be IPv4 or both be IPv6")

type clientPacket struct {
	Source, Destination netip.AddrPort
	Protocol            uint8
	// Midstream generates a packet of an established connection: an ACK for TCP, a heartbeat for SCTP.
	// Otherwise the packet is a SYN or INIT.
	Midstream bool
}

func marshal(flow clientPacket) ([]byte, error) {
	source, destination := flow.Source.Addr().Unmap(), flow.Destination.Addr().Unmap()
	if !source.IsValid() || !destination.IsValid() || source.Is4() != destination.Is4() {
		return nil, fmt.Errorf("from %s to %s: %w", flow.Source, flow.Destination, ErrFamilies)
	}
	segment, err := segment(flow)
	if err != nil {
		return nil, err
	}
	if flow.Protocol != SCTP {
		setChecksum(segment, flow.Protocol, source, destination)
	}
	if source.Is4() {
		return append(headerIPv4(flow.Protocol, source, destination, len(segment)), segment...), nil
	}
	return append(headerIPv6(flow.Protocol, source, destination, len(segment)), segment...), nil
}

func segment(flow clientPacket) ([]byte, error) {
	ports := binary.BigEndian.AppendUint16(nil, flow.Source.Port())
	ports = binary.BigEndian.AppendUint16(ports, flow.Destination.Port())
	switch flow.Protocol {
	case TCP:
		return append(ports, tcp(flow.Midstream)...), nil
	case UDP:
		return append(ports, 0, 8, 0, 0), nil
	case SCTP:
		return sctp(ports, flow.Midstream), nil
	default:
		return nil, fmt.Errorf("unsupported IP protocol %d: it must be TCP, UDP or SCTP", flow.Protocol)
	}
}

// tcp returns the header after the ports (RFC 9293, section 3.1).
func tcp(midstream bool) []byte {
	const syn, ack = 0x02, 0x10
	header := make([]byte, 16)
	header[3] = 1 // sequence number
	header[8] = 5 << 4
	header[9] = syn
	if midstream {
		header[7] = 1 // acknowledgement number
		header[9] = ack
	}
	binary.BigEndian.PutUint16(header[10:], 65535)
	return header
}

// sctp returns the whole packet (RFC 9260, sections 3.1, 3.3.2 and 3.3.5).
func sctp(ports []byte, midstream bool) []byte {
	const initiation, heartbeat = 1, 4
	header := make([]byte, 8)
	chunk := []byte{heartbeat, 0, 0, 8, 0, 1, 0, 4}
	if midstream {
		header[3] = 1 // verification tag
	} else {
		// Initiate tag 1, a window of 64 KiB, one stream in each direction.
		chunk = []byte{initiation, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1}
	}
	packet := append(append(ports, header...), chunk...)
	sum := crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli))
	// The bytes have the order of the reflected CRC (RFC 9260, appendix A).
	binary.LittleEndian.PutUint32(packet[8:], sum)
	return packet
}

// setChecksum sets the checksum of TCP or UDP (RFC 1071) over the segment and the pseudo header.
func setChecksum(segment []byte, protocol uint8, source, destination netip.Addr) {
	at := 16
	if protocol == UDP {
		at = 6
	}
	sum := checksum(source.AsSlice()) + checksum(destination.AsSlice()) + uint32(protocol) + uint32(len(segment)) + checksum(segment)
	folded := fold(sum)
	if folded == 0 && protocol == UDP {
		folded = 0xffff
	}
	binary.BigEndian.PutUint16(segment[at:], folded)
}

// checksum adds 16-bit words. A last odd byte is the upper byte of a word.
func checksum(data []byte) uint32 {
	var sum uint32
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	if len(data)%2 == 1 {
		sum += uint32(data[len(data)-1]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// headerIPv4 returns an IPv4 header (RFC 791, section 3.1).
func headerIPv4(protocol uint8, source, destination netip.Addr, payload int) []byte {
	header := make([]byte, 20)
	header[0] = 4<<4 | 5
	binary.BigEndian.PutUint16(header[2:], uint16(20+payload))
	header[6] = 0x40 // don't fragment
	header[8] = 64
	header[9] = protocol
	copy(header[12:], source.AsSlice())
	copy(header[16:], destination.AsSlice())
	binary.BigEndian.PutUint16(header[10:], fold(checksum(header)))
	return header
}

// headerIPv6 returns an IPv6 header (RFC 8200, section 3).
func headerIPv6(protocol uint8, source, destination netip.Addr, payload int) []byte {
	header := make([]byte, 40)
	header[0] = 6 << 4
	binary.BigEndian.PutUint16(header[4:], uint16(payload))
	header[6] = protocol
	header[7] = 64
	copy(header[8:], source.AsSlice())
	copy(header[24:], destination.AsSlice())
	return header
}
