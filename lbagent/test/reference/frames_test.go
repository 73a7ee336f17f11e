// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// frame returns a packet of one of a few thousand flows, occasionally damaged.
func (d *differential) frame(at forwarding.NodeID) []byte {
	r := d.random
	family := r.IntN(len(vips))
	service := services[r.IntN(len(services))]
	client := address("198.19.0.%d", 1+r.IntN(64))
	if family == 1 {
		client = address("2001:db8:1::%x", 1+r.IntN(64))
	}
	to := netip.AddrPortFrom(vips[family], service.port)
	switch r.IntN(40) {
	case 0:
		to = netip.AddrPortFrom(to.Addr(), uint16(r.Uint32()))
	case 1:
		to = netip.AddrPortFrom(to.Addr().Next(), to.Port())
	case 2:
		to = netip.AddrPortFrom(to.Addr().Next().Next(), to.Port())
	case 3:
		to = netip.AddrPortFrom(untrustedHosts[family], to.Port())
	}
	flags := flagsOf(r)
	from := netip.AddrPortFrom(client, uint16(1024+r.IntN(3)))
	frame := build(from, to, service.protocol, flags, r.IntN(200))
	if r.IntN(6) == 0 {
		frame = d.dress(frame)
	}
	copy(frame, append(append([]byte{}, d.cluster.Cluster[at].MAC...), routerMAC...))
	return d.damage(frame)
}

var vlanTags = []VLAN{
	{etherTypeVLAN, 7}, {etherTypeServiceVLAN, 9}, {etherTypeVLAN, 7}, {etherTypeServiceVLAN, 9},
	{etherTypeVLAN, 9}, {etherTypeVLAN, 0},
}

func (d *differential) dress(frame []byte) []byte {
	r := d.random
	p, _ := parse(frame)
	between := d.extensions
	if p.Client.Addr().Is4() {
		between = d.options
	}
	if r.IntN(2) == 0 {
		frame = between(frame, p)
	}
	if r.IntN(3) == 0 {
		frame[p.ttlAt()] = byte(r.IntN(3))
	}
	if p.Client.Addr().Is4() {
		header := frame[p.l3:][:4*int(frame[p.l3]&0xf)]
		clear(header[10:12])
		binary.BigEndian.PutUint16(header[10:], uint16(0xffff-residue(header)))
	}
	for range max(0, r.IntN(5)-1) {
		tag := vlanTags[r.IntN(len(vlanTags))]
		head := binary.BigEndian.AppendUint16(nil, tag.EtherType)
		frame = slices.Insert(frame, 12, binary.BigEndian.AppendUint16(head, uint16(r.IntN(16))<<12|tag.ID)...)
	}
	return frame
}

// options adds IPv4 options: record route, timestamp, router alert, NOPs, and occasionally a source route.
func (d *differential) options(frame []byte, p packet) []byte {
	kinds := [][]byte{
		{7, 7, 4, 0, 0, 0, 0}, {68, 8, 5, 0, 0, 0, 0, 0}, {148, 4, 0, 0}, {1}, {148, 4, 0, 0}, {1},
		{131, 7, 4, 198, 51, 100, 9}, {137, 7, 4, 198, 51, 100, 9}, {0},
	}
	var options []byte
	for range 1 + d.random.IntN(4) {
		options = append(options, kinds[d.random.IntN(len(kinds))]...)
	}
	options = append(options, make([]byte, -len(options)&3)...)
	frame[p.l3] += byte(len(options) / 4)
	binary.BigEndian.PutUint16(frame[p.l3+2:], uint16(p.end-p.l3+len(options)))
	return slices.Insert(frame, p.l4, options...)
}

// extensions adds IPv6 extension headers: hop-by-hop and destination options, and routing headers, some with
// segments left. Their number and length is around the limits.
func (d *differential) extensions(frame []byte, p packet) []byte {
	r := d.random
	next := frame[p.l3+6]
	count := 1 + r.IntN(7)
	var headers []byte
	for i := range count {
		kind := []byte{60, 60, 60, 43}[r.IntN(4)]
		if i == count-1 && r.IntN(2) == 0 {
			kind = 0
		}
		header := make([]byte, 8*(1+r.IntN(3)*r.IntN(5)))
		header[0], header[1] = next, byte(len(header)/8-1)
		header[2], header[3] = 1, byte(len(header)-4) // PadN
		if kind == 43 {
			header[2], header[3] = []byte{4, 4, 4, 0}[r.IntN(4)], byte(r.IntN(8)/7)
		}
		headers, next = append(header, headers...), kind
	}
	frame[p.l3+6] = next
	binary.BigEndian.PutUint16(frame[p.l3+4:], uint16(p.end-p.l4+len(headers)))
	return slices.Insert(frame, p.l4, headers...)
}

// flagsOf draws TCP flags. Resets are rare, so that connections last for a while.
func flagsOf(r *rand.Rand) byte {
	if r.IntN(16) == 0 {
		return []byte{flagRST, flagSYN | flagACK, byte(r.Uint32()), byte(r.Uint32())}[r.IntN(4)]
	}
	return []byte{flagSYN, flagACK, flagACK, flagACK, flagACK | 8, flagACK | flagFIN}[r.IntN(6)]
}

func (d *differential) damage(frame []byte) []byte {
	r := d.random
	switch r.IntN(16) {
	case 0:
		for range 1 + r.IntN(3) {
			frame[r.IntN(min(len(frame), 90))] ^= byte(1 << r.IntN(8))
		}
	case 1:
		return frame[:ethernetLength+r.IntN(len(frame)-ethernetLength)]
	case 2:
		return append(frame, make([]byte, r.IntN(40))...)
	}
	return frame
}

// build returns a frame with correct checksums and without Ethernet addresses. Initial sequence numbers of both
// sides are just below zero, so that all later numbers are valid.
func build(from, to netip.AddrPort, protocol uint8, flags byte, payload int) []byte {
	l4 := make([]byte, tcpLength+payload)
	if protocol == UDP {
		l4 = l4[:udpLength+payload]
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	} else {
		l4[12], l4[13] = tcpLength/4<<4, flags
		if flags&flagSYN != 0 {
			binary.BigEndian.PutUint32(l4[4:], 1<<32-1)
		}
	}
	for i := len(l4) - payload; i < len(l4); i++ {
		l4[i] = byte(i * 7)
	}
	binary.BigEndian.PutUint16(l4, from.Port())
	binary.BigEndian.PutUint16(l4[2:], to.Port())
	frame := make([]byte, ethernetLength)
	if to.Addr().Is4() {
		binary.BigEndian.PutUint16(frame[12:], etherTypeIPv4)
		ip := make([]byte, ipv4Length)
		ip[0], ip[8], ip[9] = 0x45, 64, protocol
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		copy(ip[12:], from.Addr().AsSlice())
		copy(ip[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(ip[10:], uint16(0xffff-residue(ip)))
		frame = append(frame, ip...)
	} else {
		binary.BigEndian.PutUint16(frame[12:], etherTypeIPv6)
		ip := make([]byte, ipv6Length)
		ip[0], ip[6], ip[7] = 0x60, protocol, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		copy(ip[8:], from.Addr().AsSlice())
		copy(ip[24:], to.Addr().AsSlice())
		frame = append(frame, ip...)
	}
	p := packet{Flow: Flow{Protocol: protocol}}
	pseudo := append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, protocol)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(l4)))
	binary.BigEndian.PutUint16(l4[p.checksumAt():], uint16(0xffff-residue(append(pseudo, l4...))))
	return append(frame, l4...)
}
