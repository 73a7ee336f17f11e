// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// groupMAC is the solicited-node multicast address of the IPv6 VIP (RFC 2464, section 7).
var groupMAC = func() net.HardwareAddr {
	vip := v6.vip.As16()
	return net.HardwareAddr{0x33, 0x33, 0xff, vip[13], vip[14], vip[15]}
}()

func solicitation(target netip.Addr, kind byte) packet {
	p := icmp(v6.other, v6.vip, icmpKind{kind: kind}, append(target.AsSlice(), 1, 1, 2, 0, 0, 0, 0, 9))
	p.ttl = 255
	return p
}

// Unicast solicitations for a VIP reach the agent's socket, and the kernel ignores them.
func TestSolicitation(t *testing.T) {
	w := newWorld(t)
	asked := solicitation(v6.vip, 135)
	drop := func(name string, reason bpf.DatapathDropReason, in []byte) fixture {
		return fixture{name: name, in: in, verdict: xdpDrop, counts: dropped(reason)}
	}
	handed := func(p packet) []byte {
		p.destination = groupMAC
		return p.frame()
	}
	frame := asked.frame()
	elsewhere := asked.with(func(p *packet) { p.destination = otherMAC }).frame()
	// RFC 826 also permits a unicast request.
	arp := append(append(append([]byte{}, uplinkMAC...), routerMAC...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	arp = append(append(append(append(arp, routerMAC...), v4.other.AsSlice()...), 0, 0, 0, 0, 0, 0), v4.vip.AsSlice()...)
	for _, fixture := range []fixture{
		{name: "solicitation of the VIP", in: frame, verdict: xdpPass, out: handed(asked)},
		{name: "with a priority tag", in: tagged(frame, 0x8100<<16), verdict: xdpPass, out: tagged(handed(asked), 0x8100<<16)},
		{name: "frame for another station", in: elsewhere, verdict: xdpPass},
		{name: "ARP", in: arp, verdict: xdpPass},
		drop("hop limit below 255", bpf.DatapathDropReasonDROP_ICMP_TYPE, asked.with(func(p *packet) { p.ttl = 254 }).frame()),
		drop("solicitation of another host", bpf.DatapathDropReasonDROP_ICMP_TYPE, solicitation(v6.self, 135).frame()),
		drop("an advertisement", bpf.DatapathDropReasonDROP_ICMP_TYPE, solicitation(v6.vip, 136).frame()),
		drop("cut", bpf.DatapathDropReasonDROP_ICMP_TYPE, frame[:14+40+23]),
	} {
		t.Run(fixture.name, func(t *testing.T) { w.check(t, fixture) })
	}
}
