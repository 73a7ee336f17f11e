// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// Packets to hosts in the network of a VIP, including this node and hosts in the same part, pass the
// filter.
func TestNeighbour(t *testing.T) {
	w := newWorld(t)
	for _, parts := range []string{"other part", "same part"} {
		for _, f := range families {
			w.setFilter(t, f.self)
			w.putPool(t, f)
			if parts == "same part" {
				_, _, _, behindPool := f.pool()
				_, _, behindAggregate := f.aggregate()
				for _, host := range []netip.Addr{f.other, behindPool, behindAggregate} {
					w.setFilter(t, host)
				}
			}
			for _, fixture := range slices.Concat(neighbours(f), fromNodes(f, f), unassigned(f)) {
				name := parts + "/" + f.name + "/" + fixture.name
				t.Run(name, func(t *testing.T) { w.check(t, fixture) })
			}
		}
	}
}

// foreignGeneve is a CNI's Geneve header (RFC 8926, section 3.4) with an inner frame.
const foreignGeneve = "\x00\x00\x65\x58\x00\x00\x07\x00the frame of a pod"

func neighbours(f family) []fixture {
	pass := func(name string, p packet) fixture { return fixture{name: name, in: p.frame(), verdict: xdpPass} }
	drop := func(name string, reason bpf.DatapathDropReason, p packet) fixture {
		return fixture{name: name, in: p.frame(), verdict: xdpDrop, counts: dropped(reason)}
	}
	syn, datagram := f.tcp(portCluster, "S"), f.udp(portCluster)
	to := func(p packet, a netip.Addr, port uint16) packet {
		return p.with(func(p *packet) { p.to = netip.AddrPortFrom(a, port) })
	}
	_, free, _, _ := f.pool()
	return []fixture{
		pass("TCP to this node", to(syn, f.self, 22)),
		pass("UDP to this node", to(datagram, f.self, 8472)),
		pass("SCTP to this node", to(syn, f.self, 22).with(func(p *packet) { p.protocol = layers.IPProtocolSCTP })),
		pass("foreign Geneve to this node", to(datagram, f.self, 4789)),
		pass("Geneve of others to this node", to(datagram, f.self, 6081).with(func(p *packet) { p.payload = foreignGeneve })),
		pass("truncated foreign Geneve to this node", to(datagram, f.self, 6081).with(func(p *packet) { p.payload = foreignGeneve[:7] })),
		pass("GRE to this node", to(syn, f.self, 0).with(func(p *packet) { p.protocol = layers.IPProtocolGRE })),
		pass("IPv4 in IP to this node", to(syn, f.self, 0).with(func(p *packet) { p.protocol = layers.IPProtocolIPv4 })),
		pass("IPv6 in IP to this node", to(syn, f.self, 0).with(func(p *packet) { p.protocol = layers.IPProtocolIPv6 })),
		pass("ESP to this node", to(syn, f.self, 0).with(func(p *packet) { p.protocol = layers.IPProtocolESP })),
		pass("GRE to a neighbour", to(syn, f.other, 0).with(func(p *packet) { p.protocol = layers.IPProtocolGRE })),
		pass("port of a VIP on this node", to(syn, f.self, portCluster)),
		pass("TCP to a neighbour", to(syn, f.other, 22)),
		pass("UDP to a neighbour", to(datagram, f.other, 53)),
		pass("Geneve to a neighbour", to(datagram, f.other, 6081)),
		pass("port of a VIP on a neighbour", to(syn, f.other, portCluster)),
		drop("unused port of a VIP", bpf.DatapathDropReasonDROP_NO_FRONTEND, to(syn, f.vip, 9)),
		drop("address of a removed pool", bpf.DatapathDropReasonDROP_POOL_UNASSIGNED, to(syn, free, 22)),
		drop("Geneve to a VIP", bpf.DatapathDropReasonDROP_NO_FRONTEND, to(datagram, f.vip, 6081)),
	}
}
