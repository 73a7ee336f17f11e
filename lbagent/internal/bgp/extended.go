// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// withoutExtended adapts an UPDATE to a router without Extended Next Hop Encoding (RFC 8950, section 4).
// IPv4 routes with an IPv6 next hop become withdrawals, because it may have older routes.
func withoutExtended(update []byte) []byte {
	routes := extendedRoutes(update)
	if routes == nil {
		return update
	}
	body := binary.BigEndian.AppendUint16(nil, uint16(len(routes)))
	body = append(body, routes...)
	return encode(bgp.BGP_MSG_UPDATE, append(body, 0, 0)...)
}

// extendedRoutes returns the NLRI in an MP_REACH_NLRI of IPv4 unicast (RFC 4760, section 3), or nil.
func extendedRoutes(update []byte) []byte {
	const (
		mpReach        = 14
		extendedLength = 0x10
	)
	body := update[headerLength:]
	withdrawn, rest, ok := counted(body)
	if !ok || len(withdrawn) > 0 {
		return nil
	}
	attributes, _, ok := counted(rest)
	for ok && len(attributes) >= 3 {
		flags, kind := attributes[0], attributes[1]
		length, start := int(attributes[2]), 3
		if flags&extendedLength != 0 {
			if len(attributes) < 4 {
				return nil
			}
			length, start = int(binary.BigEndian.Uint16(attributes[2:])), 4
		}
		if len(attributes) < start+length {
			return nil
		}
		value := attributes[start : start+length]
		attributes = attributes[start+length:]
		if kind != mpReach || len(value) < 5 || binary.BigEndian.Uint16(value) != bgp.AFI_IP || value[2] != bgp.SAFI_UNICAST {
			continue
		}
		if prefixes := 4 + int(value[3]) + 1; prefixes < len(value) {
			return value[prefixes:]
		}
	}
	return nil
}

// counted returns the content after a two-octet length, and the rest.
func counted(octets []byte) (content, rest []byte, ok bool) {
	if len(octets) < 2 || len(octets) < 2+int(binary.BigEndian.Uint16(octets)) {
		return nil, nil, false
	}
	end := 2 + int(binary.BigEndian.Uint16(octets))
	return octets[2:end], octets[end:], true
}
