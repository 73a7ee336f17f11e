// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/millrace-lb/millrace/api/flowhash"
)

// IP protocol numbers (IANA, Assigned Internet Protocol Numbers).
const (
	ProtocolTCP = 6
	ProtocolUDP = 17
	// ProtocolSCTP is forwarded only to endpoints with the frontend's port, because the checksum covers the
	// ports (RFC 9260, section 6.8).
	ProtocolSCTP = 132
)

// Compare orders keys by address, port and protocol.
func (k FrontendKey) Compare(other FrontendKey) int {
	return cmp.Or(
		k.VIP.Compare(other.VIP),
		cmp.Compare(k.Port, other.Port),
		cmp.Compare(k.Protocol, other.Protocol),
	)
}

// Hash returns the hash by which the data plane looks up an IPv6 frontend (bpf/src/frontend.h): the sum of the
// key's 32-bit words, each times a constant.
func (k FrontendKey) Hash(constants flowhash.Constants) uint64 {
	address := k.VIP.As16()
	var hash uint64
	for i, multiplier := range constants.VIP {
		hash += multiplier * uint64(binary.NativeEndian.Uint32(address[4*i:]))
	}
	var last [4]byte
	binary.BigEndian.PutUint16(last[:], k.Port)
	last[2] = k.Protocol
	return hash + constants.Frontend*uint64(binary.NativeEndian.Uint32(last[:]))
}

// String returns address:port/protocol, with IPv6 addresses in brackets.
func (k FrontendKey) String() string {
	return netip.AddrPortFrom(k.VIP, k.Port).String() + "/" + ProtocolName(k.Protocol)
}

// ProtocolName returns the name of an IP protocol, or its number.
func ProtocolName(protocol uint8) string {
	switch protocol {
	case ProtocolTCP:
		return "TCP"
	case ProtocolUDP:
		return "UDP"
	case ProtocolSCTP:
		return "SCTP"
	case 1:
		return "ICMP"
	case 58:
		return "ICMPv6"
	default:
		return strconv.Itoa(int(protocol))
	}
}

// Compare orders ranges by set, address and prefix length.
func (r SourceRange) Compare(other SourceRange) int {
	return cmp.Or(
		cmp.Compare(r.Set, other.Set),
		r.Prefix.Addr().Compare(other.Prefix.Addr()),
		cmp.Compare(r.Prefix.Bits(), other.Prefix.Bits()),
	)
}

// Compare orders endpoints by address and port.
func (e Endpoint) Compare(other Endpoint) int {
	return cmp.Or(e.Address.Compare(other.Address), cmp.Compare(e.Port, other.Port))
}
