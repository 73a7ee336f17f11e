// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// deliveredTTL is the minimum TTL of a packet to an endpoint, because the node's stack forwards it.
const deliveredTTL = 2

// CheckTranslated checks that out is the TCP or UDP packet in with another destination (or source). Only
// checksums, which must remain correct if they were, and a TTL too low to reach the endpoint may also change.
// Ethernet addresses and bytes after the IP packet are ignored.
func CheckTranslated(in, out []byte, source bool, to netip.AddrPort) error {
	was, reading := parse(in)
	if reading != plain {
		return fmt.Errorf("the packet that came in is not TCP or UDP")
	}
	is, reading := parse(out)
	if reading != plain || is.end-is.l3 != was.end-was.l3 {
		return fmt.Errorf("the packet that came out has other lengths or headers")
	}
	got := is.VIP
	if source {
		got = is.Client
	}
	if got != to {
		return fmt.Errorf("the address is %s, want %s", got, to)
	}
	before, after := was.without(in, source), is.without(out, source)
	if ttl := was.ttlAt() - was.l3; !source {
		before[ttl] = max(before[ttl], deliveredTTL)
	}
	if !bytes.Equal(before, after) {
		return fmt.Errorf("more than address, port and checksums differs")
	}
	if was.Client.Addr().Is4() && residue(in[was.l3:was.l4]) != residue(out[is.l3:is.l4]) {
		return fmt.Errorf("the checksum of the IP header is wrong")
	}
	return checkSum(in, out, was, is)
}

func checkSum(in, out []byte, was, is packet) error {
	sum := is.checksum(out)
	if was.Protocol == UDP && was.checksum(in) == 0 {
		if sum != 0 {
			return fmt.Errorf("unexpected UDP checksum")
		}
		return nil
	}
	if was.Protocol == UDP && sum == 0 {
		return fmt.Errorf("the UDP checksum became zero, which means no checksum")
	}
	if residue(was.summed(in)) != residue(is.summed(out)) {
		return fmt.Errorf("the checksum of TCP or UDP is wrong")
	}
	return nil
}

func (p packet) checksumAt() int {
	if p.Protocol == TCP {
		return p.l4 + 16
	}
	return p.l4 + 6
}

func (p packet) checksum(frame []byte) uint16 { return binary.BigEndian.Uint16(frame[p.checksumAt():]) }

// addresses returns offset and length of the source and the destination address.
func (p packet) addresses() (source, destination []int) {
	if p.Client.Addr().Is4() {
		return []int{p.l3 + 12, 4}, []int{p.l3 + 16, 4}
	}
	return []int{p.l3 + 8, 16}, []int{p.l3 + 24, 16}
}

// without returns the IP packet with address, port and checksums zeroed.
func (p packet) without(frame []byte, source bool) []byte {
	all := slices.Clone(frame[:p.end])
	from, to := p.addresses()
	address, port := to, p.l4+2
	if source {
		address, port = from, p.l4
	}
	clear(all[address[0] : address[0]+address[1]])
	clear(all[port : port+2])
	clear(all[p.checksumAt() : p.checksumAt()+2])
	if p.Client.Addr().Is4() {
		clear(all[p.l3+10 : p.l3+12])
	}
	return all[p.l3:]
}

func (p packet) ttlAt() int {
	if p.Client.Addr().Is4() {
		return p.l3 + 8
	}
	return p.l3 + 7
}

// summed returns the variable input of the TCP or UDP checksum: the addresses of the pseudo-header and the
// segment.
func (p packet) summed(frame []byte) []byte {
	from, to := p.addresses()
	all := slices.Clone(frame[from[0] : from[0]+from[1]])
	all = append(all, frame[to[0]:to[0]+to[1]]...)
	return append(all, frame[p.l4:p.end]...)
}

// residue returns the sum of 16-bit words modulo 0xffff (RFC 1071), which is invariant if a checksum is updated
// with its data.
func residue(data []byte) uint32 {
	var sum uint64
	for len(data) > 1 {
		sum += uint64(binary.BigEndian.Uint16(data))
		data = data[2:]
	}
	if len(data) == 1 {
		sum += uint64(data[0]) << 8
	}
	return uint32(sum % 0xffff)
}
