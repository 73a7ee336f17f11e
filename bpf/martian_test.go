// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// martians are packets with invalid client addresses, and some with similar valid ones.
func martians(f family) []fixture {
	_, first, last, behind := f.pool()
	from := func(p packet, a netip.Addr) packet {
		return p.with(func(p *packet) { p.from = netip.AddrPortFrom(a, p.from.Port()) })
	}
	drop := func(name string, p packet) fixture {
		return fixture{name: name, in: p.frame(), verdict: xdpDrop, counts: join(f.received(p), dropped(bpf.DatapathDropReasonDROP_MARTIAN))}
	}
	syn, ack, udp := f.tcp(portCluster, "S"), f.tcp(portCluster, "A"), f.udp(portNode2)
	serve := func(name string, a netip.Addr, given func(*testing.T, *world)) fixture {
		p := from(syn, a)
		return fixture{
			name: name, given: given, in: p.frame(), verdict: xdpPass, out: delivered(p, f.pods[0]),
			counts: join(f.received(p), f.opened(portCluster)),
		}
	}
	fixtures := []fixture{
		drop("UDP from the VIP itself", from(udp, f.vip)),
		drop("TCP from the VIP itself", from(syn, f.vip)),
		drop("ACK from the VIP itself", from(ack, f.vip)),
		drop("UDP from a pool", from(udp, first)),
		drop("TCP from a pool", from(syn, last)),
		serve("address after the pool", behind, nil),
		serve("a node whose address is of a pool", first, func(t *testing.T, w *world) {
			put(t, w.NodeAddresses, address(first), uint32(nodeID(2)))
			t.Cleanup(func() {
				if err := w.NodeAddresses.Delete(address(first)); err != nil {
					t.Error(err)
				}
			})
		}),
	}
	nobody := []string{"127.0.0.1", "127.255.255.255", "0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "255.255.255.255"}
	neighbours := []string{"1.0.0.1", "126.0.0.1", "128.0.0.1", "223.255.255.255", "240.0.0.1", "255.255.255.254"}
	if f.vip.Is6() {
		nobody = []string{"::", "::1", "::ffff:203.0.113.1", "::203.0.113.1", "ff02::1", "ff0e::1"}
		neighbours = []string{"0:0:1::1", "64:ff9b::cb00:7101", "fe80::1"}
	} else {
		options := []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
		fixtures = append(fixtures, drop("with IP options, from the VIP itself", from(syn, f.vip).with(func(p *packet) { p.ipOptions = options })))
	}
	for _, text := range nobody {
		a := netip.MustParseAddr(text)
		fixtures = append(fixtures, drop("UDP from "+text, from(udp, a)), drop("TCP from "+text, from(syn, a)))
	}
	for _, text := range neighbours {
		fixtures = append(fixtures, serve("TCP from "+text, netip.MustParseAddr(text), nil))
	}
	return fixtures
}
