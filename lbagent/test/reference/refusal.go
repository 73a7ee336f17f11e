// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

const icmpLength = 8

// CheckRefusal checks that out refuses the TCP or UDP packet in, by a reset (RFC 9293 section 3.10.7.1) or ICMP
// port unreachable (RFC 792, RFC 4443 section 3.1). Its source must be the VIP and, if direct, its Ethernet
// destination the sender of in.
func CheckRefusal(in, out []byte, direct bool) error {
	was, reading := parse(in)
	if reading != plain {
		return fmt.Errorf("the packet that came in is not TCP or UDP")
	}
	is, reading := parse(out)
	if reading == notIP || is.end != len(out) {
		return fmt.Errorf("the answer is no IP packet that fills its frame: %x", out)
	}
	if direct && !bytes.Equal(out[12:is.l3], in[12:was.l3]) {
		return fmt.Errorf("the answer has other VLAN tags")
	}
	if direct && !bytes.Equal(out[:12], slices.Concat(in[6:12], in[:6])) {
		return fmt.Errorf("the answer does not go back to where the packet came from")
	}
	if is.Client.Addr() != was.VIP.Addr() || is.VIP.Addr() != was.Client.Addr() {
		return fmt.Errorf("the answer is from %s to %s", is.Client.Addr(), is.VIP.Addr())
	}
	if is.Client.Addr().Is4() && residue(out[is.l3:is.l4]) != 0 {
		return fmt.Errorf("the checksum of the answer's IP header does not fit")
	}
	if was.Protocol == TCP {
		return checkReset(in, out, was, is)
	}
	return checkUnreachable(in, out, was, is)
}

func checkReset(in, out []byte, was, is packet) error {
	if is.Protocol != TCP || is.end != is.l4+tcpLength {
		return fmt.Errorf("the answer is no bare TCP header")
	}
	if is.Client != was.VIP || is.VIP != was.Client {
		return fmt.Errorf("the reset is from %s to %s", is.Client, is.VIP)
	}
	syn, reset := in[was.l4:was.end], out[is.l4:is.end]
	if residue(is.pseudo(out)) != 0 {
		return fmt.Errorf("the checksum of the reset does not fit")
	}
	if reset[12]>>4 != tcpLength/4 || is.flags != flagRST|flagACK || binary.BigEndian.Uint32(reset[4:]) != 0 {
		return fmt.Errorf("the answer is no reset of a SYN: %x", reset)
	}
	header := int(syn[12]>>4) * 4
	if header < tcpLength || header > len(syn) {
		return nil // The length of such a segment is undefined.
	}
	want := binary.BigEndian.Uint32(syn[4:]) + 1 + uint32(len(syn)-header)
	if got := binary.BigEndian.Uint32(reset[8:]); got != want {
		return fmt.Errorf("the reset acknowledges %d, want %d", got, want)
	}
	return nil
}

// checkUnreachable checks an ICMP error. Its quoted length is defined in RFC 1812 section 4.3.2.3 and RFC 4443
// section 2.4 (c).
func checkUnreachable(in, out []byte, was, is packet) error {
	protocol, limit, kind := byte(1), 576, []byte{3, 3}
	covered := out[is.l4:is.end]
	if was.Client.Addr().Is6() {
		protocol, limit, kind = 58, 1280, []byte{1, 4}
		covered = is.pseudo(out)
	}
	message := out[is.l4:is.end]
	if is.Protocol != protocol || len(message) < icmpLength || !bytes.Equal(message[:2], kind) {
		return fmt.Errorf("the answer is not port unreachable: %x", out)
	}
	if residue(covered) != 0 {
		return fmt.Errorf("the checksum of the ICMP message does not fit")
	}
	shown := min(was.end-was.l3, limit-(is.l4-is.l3)-icmpLength)
	if !bytes.Equal(message[icmpLength:], in[was.l3:][:shown]) {
		return fmt.Errorf("the ICMP message does not show the first %d bytes of the packet: %x", shown, message)
	}
	return nil
}

// pseudo returns the pseudo-header of a checksum (RFC 9293 section 3.1, RFC 8200 section 8.1) and the segment.
func (p packet) pseudo(frame []byte) []byte {
	covered := slices.Concat(p.Client.Addr().AsSlice(), p.VIP.Addr().AsSlice(), []byte{0, p.Protocol})
	covered = binary.BigEndian.AppendUint16(covered, uint16(p.end-p.l4))
	return append(covered, frame[p.l4:p.end]...)
}
