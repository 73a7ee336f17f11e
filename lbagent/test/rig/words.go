// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/binary"
	"net/netip"
)

// Words returns the words of an address as loaded from a packet; IPv4 is the last one.
func Words(address netip.Addr) (out [4]uint32) {
	b := address.As16()
	for i := range out {
		out[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return out
}

// NetworkPort returns a port as loaded from a packet.
func NetworkPort(port uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(port >> 8), byte(port)})
}
