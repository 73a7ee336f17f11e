// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// open encodes an OPEN of any content.
type open struct {
	version    byte
	as         uint16
	hold       uint16
	id         [4]byte
	parameters []byte
	// length is the encoded length of the parameters; nil is the correct one.
	length []byte
}

func (o open) encode() []byte {
	body := []byte{o.version}
	body = binary.BigEndian.AppendUint16(body, o.as)
	body = binary.BigEndian.AppendUint16(body, o.hold)
	body = append(body, o.id[:]...)
	if o.length == nil {
		o.length = []byte{byte(len(o.parameters))}
	}
	return encode(bgp.BGP_MSG_OPEN, slices.Concat(body, o.length, o.parameters)...)
}

func goodOpen() open { return open{version: 4, as: 64500, hold: 90, id: [4]byte{198, 51, 100, 1}} }

func opening(change func(*open)) []byte {
	o := goodOpen()
	change(&o)
	return o.encode()
}

func capability(code byte, value ...byte) []byte {
	return append([]byte{code, byte(len(value))}, value...)
}

func parameter(kind byte, value ...byte) []byte {
	return append([]byte{kind, byte(len(value))}, value...)
}

func withCapabilities(capabilities ...[]byte) []byte {
	return opening(func(o *open) { o.parameters = parameter(2, slices.Concat(capabilities...)...) })
}

var (
	capIPv4   = capability(1, 0, 1, 0, 1)
	capIPv6   = capability(1, 0, 2, 0, 1)
	capFour   = capability(65, 0, 0, 0xfb, 0xf4)
	keepalive = encode(bgp.BGP_MSG_KEEPALIVE)
)

// odd is an invalid or unusual behavior of a router.
type odd struct {
	name string
	// says replaces the OPEN; our routes follow.
	says, then []byte
	// tells is the expected part of LastError; empty if the session stays established.
	tells string
	// notified is the expected NOTIFICATION, if any.
	notified [2]byte
}

var oddOpens = []odd{
	{name: "our identifier, other AS", says: opening(func(o *open) { o.id = nodeIPv4.As4() })},
	{name: "identifier 0.0.0.0", says: opening(func(o *open) { o.id = [4]byte{} }), tells: "Bad BGP Identifier", notified: [2]byte{2, 3}},
	{name: "wrong AS", says: opening(func(o *open) { o.as = 64501 }), tells: "Bad Peer AS", notified: [2]byte{2, 2}},
	{name: "hold time 0", says: opening(func(o *open) { o.hold = 0 }), tells: "without a hold time", notified: [2]byte{2, 6}},
	{name: "hold time 1", says: opening(func(o *open) { o.hold = 1 }), tells: "Unacceptable Hold Time", notified: [2]byte{2, 6}},
	{name: "hold time 2", says: opening(func(o *open) { o.hold = 2 }), tells: "Unacceptable Hold Time", notified: [2]byte{2, 6}},
	{name: "version 3", says: opening(func(o *open) { o.version = 3 }), tells: "Unsupported Version Number", notified: [2]byte{2, 1}},
	{name: "no parameters", says: goodOpen().encode()},
	{name: "parameters past the end", says: opening(func(o *open) { o.length = []byte{9} }), tells: "OPEN", notified: [2]byte{2, 0}},
	{name: "parameters shorter than their length", says: opening(func(o *open) { o.length, o.parameters = []byte{9}, parameter(2, capIPv4...) }), tells: "OPEN", notified: [2]byte{2, 0}},
	{name: "octets after the parameters", says: opening(func(o *open) { o.length, o.parameters = []byte{0}, parameter(2, capIPv4...) }), tells: "OPEN", notified: [2]byte{2, 0}},
	{name: "truncated parameter", says: opening(func(o *open) { o.parameters = []byte{2, 9, 1} }), tells: "OPEN", notified: [2]byte{2, 0}},
	{name: "unknown parameter", says: opening(func(o *open) { o.parameters = parameter(99, 1, 2, 3) }), tells: "Unsupported Optional Parameter", notified: [2]byte{2, 4}},
	{name: "extended length (RFC 9072)", says: opening(func(o *open) {
		o.length, o.parameters = []byte{255, 255, 0, 9}, append([]byte{2, 0, 6}, capIPv4...)
	})},
	{name: "extended length of many capabilities", says: opening(func(o *open) {
		all := slices.Concat(capIPv4, capFour, bytes.Repeat(capability(200, make([]byte, 100)...), 20))
		o.length = binary.BigEndian.AppendUint16([]byte{255, 255}, uint16(3+len(all)))
		o.parameters = append(binary.BigEndian.AppendUint16([]byte{2}, uint16(len(all))), all...)
	})},
	{name: "unknown capabilities", says: withCapabilities(capIPv4, capability(200, 1, 2, 3), capability(201), capFour)},
	{name: "repeated capabilities", says: withCapabilities(capIPv4, capIPv4, capFour, capFour, capIPv4)},
	{name: "two ASNs", says: withCapabilities(capFour, capability(65, 0, 0, 1, 1)), tells: "Bad Peer AS", notified: [2]byte{2, 2}},
	{name: "truncated capability", says: withCapabilities(capIPv4, []byte{65, 4, 0}), tells: "OPEN", notified: [2]byte{2, 0}},
	{name: "truncated capability header", says: withCapabilities(capIPv4, []byte{65}), tells: "OPEN", notified: [2]byte{2, 0}},
	{name: "OPEN truncated by ten octets", says: encode(bgp.BGP_MSG_OPEN), tells: "too short", notified: [2]byte{1, 2}},
	{name: "AS 0", says: withCapabilities(capability(65, 0, 0, 0, 0)), tells: "Bad Peer AS", notified: [2]byte{2, 2}},
	{name: "short multiprotocol capability", says: withCapabilities(capability(1, 0, 1)), tells: "OPEN", notified: [2]byte{2, 0}},
	{name: "short graceful restart", says: withCapabilities(capability(64, 0)), tells: "OPEN", notified: [2]byte{2, 0}},
	{name: "graceful restart with a partial family", says: withCapabilities(capability(64, 0, 120, 0, 1, 1))},
	{name: "names that are not UTF-8", says: withCapabilities(capIPv4, capability(73, 2, 0xff, 0xfe, 1, 0xff), capability(75, 3, 0xff, 0xfe, 0xfd))},
	{name: "name longer than its capability", says: withCapabilities(capIPv4, capability(73, 200, 1))},
	{name: "graceful restart of one family, 60 times", says: withCapabilities(capIPv4,
		capability(64, append([]byte{0x80, 120}, bytes.Repeat([]byte{0, 1, 1, 0x80}, 60)...)...))},
	{name: "ADD-PATH for all families", says: withCapabilities(capIPv4, capability(69, 0, 1, 1, 3, 0, 2, 1, 3))},
	{name: "no supported family", says: withCapabilities(capability(1, 0, 25, 0, 70)), tells: "without an address family", notified: [2]byte{2, 7}},
	{name: "IPv6 alone", says: withCapabilities(capIPv6)},
	{name: "KEEPALIVE before OPEN", says: keepalive, tells: "Unexpected Message in OpenSent", notified: [2]byte{5, 1}},
	{name: "UPDATE before OPEN", says: encode(bgp.BGP_MSG_UPDATE, 0, 0, 0, 0), tells: "Unexpected Message in OpenSent", notified: [2]byte{5, 1}},
	{name: "OPEN twice", says: slices.Concat(goodOpen().encode(), goodOpen().encode()), tells: "Unexpected Message in OpenConfirm", notified: [2]byte{5, 2}},
	{name: "not BGP", says: []byte("GET / HTTP/1.1\r\nHost: router\r\n\r\n"), tells: "Connection Not Synchronized", notified: [2]byte{1, 1}},
	{name: "OPEN of 5,000 octets", says: append(bytes.Repeat([]byte{0xff}, 16), 0x13, 0x88, 1), tells: "Bad Message Length", notified: [2]byte{1, 2}},
}

func attribute(flags, kind byte, value ...byte) []byte {
	return append([]byte{flags, kind, byte(len(value))}, value...)
}

func update(withdrawn []byte, attributes []byte, prefixes ...byte) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	body = append(body, withdrawn...)
	body = binary.BigEndian.AppendUint16(body, uint16(len(attributes)))
	return encode(bgp.BGP_MSG_UPDATE, slices.Concat(body, attributes, prefixes)...)
}

var (
	origin  = attribute(0x40, 1, 0)
	asPath  = attribute(0x40, 2, 2, 1, 0, 0, 0xfb, 0xf4)
	nextHop = attribute(0x40, 3, 198, 51, 100, 1)
	good    = slices.Concat(origin, asPath, nextHop)
	prefix  = []byte{24, 203, 0, 113}
)

func endOf(flags byte, afi uint16, safi byte) []byte {
	return update(nil, []byte{flags, 15, 3, byte(afi >> 8), byte(afi), safi})
}

func refreshOf(afi uint16, subtype, safi byte) []byte {
	return encode(bgp.BGP_MSG_ROUTE_REFRESH, byte(afi>>8), byte(afi), subtype, safi)
}

var oddSessions = []odd{
	{name: "no body", then: encode(bgp.BGP_MSG_UPDATE)},
	{name: "one octet", then: encode(bgp.BGP_MSG_UPDATE, 0)},
	{name: "withdrawn length past the end", then: encode(bgp.BGP_MSG_UPDATE, 0xff, 0xff, 0, 0)},
	{name: "attribute length past the end", then: encode(bgp.BGP_MSG_UPDATE, 0, 0, 0xff, 0xff)},
	{name: "truncated attribute", then: update(nil, []byte{0x40, 1, 200, 0}, prefix...)},
	{name: "duplicate ORIGIN", then: update(nil, slices.Concat(origin, origin, asPath, nextHop), prefix...)},
	{name: "ORIGIN 9", then: update(nil, slices.Concat(attribute(0x40, 1, 9), asPath, nextHop), prefix...)},
	{name: "no attributes", then: update(nil, nil, prefix...)},
	{name: "our AS in AS_PATH", then: update(nil, slices.Concat(origin, attribute(0x40, 2, 2, 1, 0, 0, 0xfc, 0), nextHop), prefix...)},
	{name: "AS_PATH with 2-octet ASNs", then: update(nil, slices.Concat(origin, attribute(0x40, 2, 2, 1, 0xfb, 0xf4), nextHop), prefix...)},
	{name: "AS_PATH without valid segments", then: update(nil, slices.Concat(origin, attribute(0x40, 2, 9, 200), nextHop), prefix...)},
	{name: "MP_REACH with a next hop of 7 octets", then: update(nil, slices.Concat(origin, asPath, attribute(0x80, 14, 0, 2, 1, 7, 1, 2, 3, 4, 5, 6, 7, 0)))},
	{name: "MP_REACH with a next hop past the end", then: update(nil, slices.Concat(origin, asPath, attribute(0x80, 14, 0, 2, 1, 255, 1)))},
	{name: "two MP_REACH", then: update(nil, slices.Concat(good, attribute(0x80, 14, 0, 2, 1, 0, 0), attribute(0x80, 14, 0, 2, 1, 0, 0)))},
	{name: "prefix length 33", then: update(nil, good, 33, 203, 0, 113, 0, 0)},
	{name: "withdrawn prefix length 129", then: update([]byte{129, 1}, nil)},
	{name: "IPv6 prefix length 129", then: update(nil, append(attribute(0x80, 15, 0, 2, 1, 129), make([]byte, 0)...))},
	{name: "unknown family", then: update(nil, slices.Concat(origin, asPath, attribute(0x80, 14, 0x40, 4, 71, 4, 1, 2, 3, 4, 0, 8, 9)))},
	{name: "4,096 octets", then: largest()},
	{name: "65,535 octets (RFC 8654)", then: append(append(bytes.Repeat([]byte{0xff}, 16), 0xff, 0xff, 2), make([]byte, 65535-19)...),
		tells: "Bad Message Length", notified: [2]byte{1, 2}},
	{name: "4,097 octets", then: append(append(bytes.Repeat([]byte{0xff}, 16), 0x10, 0x01, 2), make([]byte, 4097-19)...),
		tells: "Bad Message Length", notified: [2]byte{1, 2}},
	{name: "End-of-RIB of an unsupported family", then: endOf(0x80, 16388, 71)},
	{name: "End-of-RIB of family 0", then: endOf(0x80, 0, 0)},
	{name: "End-of-RIB of a family that was not negotiated", then: endOf(0x80, 2, 1)},
	{name: "End-of-RIB with wrong flags", then: endOf(0x00, 1, 1)},
	{name: "End-of-RIBs", then: bytes.Repeat(endOf(0x80, 1, 1), 1000)},
	{name: "ROUTE-REFRESH for an unsupported family", then: refreshOf(16388, 0, 71)},
	{name: "ROUTE-REFRESH for a family that was not negotiated", then: bytes.Repeat(refreshOf(2, 0, 1), 100)},
	{name: "ROUTE-REFRESH of subtype 255", then: refreshOf(1, 255, 1)},
	{name: "ROUTE-REFRESH of invalid length", then: encode(bgp.BGP_MSG_ROUTE_REFRESH, 0, 1), tells: "Bad Message Length", notified: [2]byte{1, 2}},
	{name: "KEEPALIVE with a body", then: encode(bgp.BGP_MSG_KEEPALIVE, 0), tells: "Bad Message Length", notified: [2]byte{1, 2}},
	{name: "KEEPALIVEs", then: bytes.Repeat(keepalive, 10_000)},
	{name: "message of type 0", then: encode(0), tells: "Message", notified: [2]byte{1, 3}},
	{name: "OPEN in the session", then: goodOpen().encode(), tells: "Unexpected Message in Established", notified: [2]byte{5, 3}},
	{name: "NOTIFICATION of unknown code", then: encode(bgp.BGP_MSG_NOTIFICATION, 99, 99, 1), tells: "NOTIFICATION code 99"},
	{name: "NOTIFICATION with maximum length", then: encode(bgp.BGP_MSG_NOTIFICATION, append([]byte{6, 2, 255}, bytes.Repeat([]byte{0xff}, 4000)...)...), tells: "Administrative Shutdown"},
	{name: "NOTIFICATION without a code", then: encode(bgp.BGP_MSG_NOTIFICATION), tells: "Bad Message Length", notified: [2]byte{1, 2}},
}
