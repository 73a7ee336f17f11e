// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// seed of the flow hash; all nodes have the same.
const seed = 0x4d696c6c

// hash is hashword2 of Bob Jenkins' lookup3 over client, VIP and ports: one value for the
// node, one for the endpoint.
func (f Flow) hash() (node, endpoint uint32) {
	var words []uint32
	for _, address := range []netip.Addr{f.Client.Addr(), f.VIP.Addr()} {
		for b := address.AsSlice(); len(b) > 0; b = b[4:] {
			words = append(words, binary.NativeEndian.Uint32(b))
		}
	}
	ports := binary.BigEndian.AppendUint16(nil, f.Client.Port())
	ports = binary.BigEndian.AppendUint16(ports, f.VIP.Port())
	words = append(words, binary.NativeEndian.Uint32(ports))

	a := 0xdeadbeef + uint32(len(words))<<2 + seed + uint32(f.Protocol)
	b, c := a, a
	for ; len(words) > 3; words = words[3:] {
		a, b, c = mix(a+words[0], b+words[1], c+words[2])
	}
	b, c = final(a+words[0], b+words[1], c+words[2])
	return c, b
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	rounds := func(shift int, x, y, z *uint32) {
		*x -= *z
		*x ^= bits.RotateLeft32(*z, shift)
		*z += *y
	}
	rounds(4, &a, &b, &c)
	rounds(6, &b, &c, &a)
	rounds(8, &c, &a, &b)
	rounds(16, &a, &b, &c)
	rounds(19, &b, &c, &a)
	rounds(4, &c, &a, &b)
	return a, b, c
}

// final gives b and c.
func final(a, b, c uint32) (uint32, uint32) {
	step := func(x *uint32, y uint32, shift int) { *x = (*x ^ y) - bits.RotateLeft32(y, shift) }
	step(&c, b, 14)
	step(&a, c, 11)
	step(&b, a, 25)
	step(&c, b, 16)
	step(&a, c, 4)
	step(&b, a, 14)
	step(&c, b, 24)
	return b, c
}
