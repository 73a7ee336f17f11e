// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// TestTunnel checks encapsulated packets over either family.
func TestTunnel(t *testing.T) {
	w := newWorld(t)
	for _, outer := range families {
		for _, inner := range families {
			for _, fixture := range fromNodes(outer, inner) {
				t.Run(inner.name+" in "+outer.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
			}
		}
	}
}

func fromNodes(outer, inner family) []fixture {
	syn := inner.tcp(portCluster, "S")
	good := syn.arrived(outer, 0)
	drop := func(name string, reason bpf.DatapathDropReason, in []byte) fixture {
		return fixture{name: name, in: in, verdict: xdpDrop, counts: dropped(reason)}
	}
	pass := func(name string, in, out []byte, more ...tally) fixture {
		return fixture{name: name, in: in, verdict: xdpPass, out: out, counts: join(more...)}
	}
	changed := func(change func(*tunnel)) []byte { return good.with(change).frame() }
	opened := inner.opened(portCluster)
	served := delivered(syn, inner.pods[0])
	ect := syn.with(func(p *packet) { p.tos = 0x2 })
	marked := syn.with(func(p *packet) { p.tos = 0x3 })
	fixtures := []fixture{
		pass("SYN", good.frame(), served, opened),
		pass("longest options", changed(func(t *tunnel) { t.extraOptions = 57 - highBytes()/4 }), served, opened),
		pass("other VNI", changed(func(t *tunnel) { t.vni = 7 }), nil),
		pass("other VNI from an unknown source", changed(func(t *tunnel) { t.vni = 7; t.from = outer.other }), nil),
		pass("congestion mark in the outer header", ect.arrived(outer, 0).with(func(t *tunnel) { t.tos = 3 }).frame(),
			delivered(marked, inner.pods[0]), opened),
		pass("already marked in the inner header", marked.arrived(outer, 0).with(func(t *tunnel) { t.tos = 2 }).frame(),
			delivered(marked, inner.pods[0]), opened),
		pass("outer DSCP is ignored", changed(func(t *tunnel) { t.tos = 0xb8 }), served, opened),
		drop("congestion marked though not capable", bpf.DatapathDropReasonDROP_TUNNEL_ECN, changed(func(t *tunnel) { t.tos = 3 })),
		drop("from an unknown node", bpf.DatapathDropReasonDROP_TUNNEL_SOURCE, changed(func(t *tunnel) { t.from = outer.other })),
		drop("from the local node address", bpf.DatapathDropReasonDROP_TUNNEL_SOURCE, changed(func(t *tunnel) { t.from = outer.self })),
		drop("version 1", bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED, changed(func(t *tunnel) { t.version = 1 })),
		drop("no option", bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED, changed(func(t *tunnel) { t.noOption = true })),
		drop("no tag", bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED, changed(func(t *tunnel) { t.noTag = true })),
		drop("other option instead of the tag", bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED,
			changed(func(t *tunnel) { t.noTag, t.extraOptions = true, 3 })),
		drop("other option", bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED, changed(func(t *tunnel) { t.class = 0x0101 })),
		drop("Ethernet inside", bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED, changed(func(t *tunnel) { t.protocol = 0x6558 })),
		drop("no VIP inside", bpf.DatapathDropReasonDROP_TUNNEL_NO_VIP,
			changed(func(t *tunnel) { t.inner.to = netip.AddrPortFrom(inner.other, portCluster) })),
		drop("endpoint inside", bpf.DatapathDropReasonDROP_TUNNEL_NO_VIP, changed(func(t *tunnel) { t.inner.to = inner.pods[0] })),
		drop("unused port inside", bpf.DatapathDropReasonDROP_NO_FRONTEND, changed(func(t *tunnel) { t.inner.to = inner.to(9) })),
		drop("unknown protocol to a VIP inside", bpf.DatapathDropReasonDROP_VIP_PROTOCOL,
			changed(func(t *tunnel) { t.inner.protocol = layers.IPProtocolGRE })),
		drop("frontend without an endpoint here", bpf.DatapathDropReasonDROP_NO_ENDPOINT,
			changed(func(t *tunnel) { t.inner.to = inner.to(portClusterEmpty) })),
	}
	good.untagged = true
	whole := good.frame()
	headers := len(whole) - len(syn.ip())
	for name, length := range map[string]int{
		"truncated option": headers - 1, "empty inner packet": headers, "truncated IP header inside": headers + 19,
	} {
		fixtures = append(fixtures, drop(name, bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED, shorten(outer, whole, length)))
	}
	return append(fixtures, drop("truncated TCP header inside", bpf.DatapathDropReasonDROP_MALFORMED,
		shorten(outer, whole, len(whole)-len(syn.payload)-1)))
}

func shorten(outer family, frame []byte, length int) []byte {
	out := append([]byte{}, frame[:length]...)
	udp := 14 + 20
	if outer.vip.Is4() {
		total := length - 14
		out[16], out[17] = byte(total>>8), byte(total)
	} else {
		udp += 20
		payload := length - udp
		out[18], out[19] = byte(payload>>8), byte(payload)
	}
	out[udp+4], out[udp+5] = byte((length-udp)>>8), byte(length-udp)
	return out
}

// TestOwnerBefore checks new flows forwarded to this node before it knows of an endpoint: they are sent to
// the row's owner.
func TestOwnerBefore(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		lost := dropped(bpf.DatapathDropReasonDROP_NO_ENDPOINT)
		asked := event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)
		syn, ack := f.tcp(portClusterEmpty, "S"), f.tcp(portClusterEmpty, "A")
		owned := func(p packet, by uint16) func(*testing.T, *world) {
			return func(t *testing.T, w *world) {
				put(t, w.Rows, p.rowIndex(), table{primary: by}.row())
				t.Cleanup(func() { put(t, w.Rows, p.rowIndex(), tables[portClusterEmpty].row()) })
			}
		}
		from3 := func(p packet, chain ...uint16) tunnel {
			return p.arrived(v4, selfID, chain...).with(func(t *tunnel) { t.ingress = 3 })
		}
		handedOn := func(name string, in tunnel) fixture {
			last := from3(in.inner).onwards(v4.node2).with(func(t *tunnel) { t.chooser, t.zones = 2, 8 })
			return fixture{name: name, given: owned(in.inner, 2), in: in.frame(), verdict: xdpTX, out: toNode2(last), counts: asked}
		}
		nobody := func(name string, in tunnel, owner uint16) fixture {
			return fixture{name: name, given: owned(in.inner, owner), in: in.frame(), verdict: xdpDrop, counts: lost}
		}
		for _, fixture := range []fixture{
			handedOn("SYN", from3(syn)),
			handedOn("SYN with a chain", from3(syn, 2, 3, 3)),
			handedOn("SYN, the chain is by rank", withFlags(from3(syn, 3), flagRanked)),
			nobody("SYN, this node is the owner", from3(syn), selfID),
			nobody("SYN, owner no longer a node", from3(syn), 99),
			nobody("SYN that was already forwarded", from3(syn).with(func(t *tunnel) { t.zones = 8 }), 2),
			nobody("ACK, no node left to query", from3(ack), selfID),
			{
				name: "SYN from the router", in: syn.frame(), verdict: xdpDrop,
				counts: join(f.received(syn), lost),
			},
		} {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}
