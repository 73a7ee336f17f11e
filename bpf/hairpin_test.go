// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// Packets of the node itself to a VIP return to it. Its own endpoints cannot serve them, so another row's
// primary does.
func TestOwnSource(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		own := func(p packet) packet {
			p.from = netip.AddrPortFrom(f.self, p.from.Port())
			return p
		}
		syn, ack, udp := own(f.tcp(portChain, "S")), own(f.tcp(portChain, "A")), own(f.udp(portChain))
		asked := event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)
		toPrimary := event(bpf.DatapathEventEVENT_LOOKUP_RETURNED)
		last := func(t tunnel) tunnel { return t.with(func(t *tunnel) { t.zones = 8 }) }
		// All rows belong to this node, except the one visited in this step.
		otherRow := func(p packet, step uint32) func(*testing.T, *world) {
			return func(t *testing.T, w *world) {
				hash, _ := flowHash(p)
				index := p.rowIndex() - hash>>20 + (hash+step*0x9e3779b9)>>20
				put(t, w.Rows, index, table{primary: 2}.row())
				t.Cleanup(func() { put(t, w.Rows, index, tables[portChain].row()) })
			}
		}
		onwards := func(name string, p packet, step uint32) fixture {
			return fixture{
				name: name, given: otherRow(p, step), in: p.frame(), verdict: xdpTX,
				out: toNode2(last(p.tunnelled(v4.node2, 2))), counts: f.received(p),
			}
		}
		fromNode2 := onwards("from another ingress node", syn, 3)
		fromNode2.in, fromNode2.counts = syn.arrived(v4, selfID, 2, 3).frame(), nil
		fromNode2.out = toNode2(last(syn.arrived(v4, 2).onwards(v4.node2)))
		lost := dropped(bpf.DatapathDropReasonDROP_HAIRPIN)
		tooFar := onwards("further rows are not looked at", syn, 33)
		tooFar.verdict, tooFar.out, tooFar.counts = xdpDrop, nil, join(f.received(syn), lost)
		nobody := own(f.tcp(portCluster, "S"))
		local := own(f.tcp(portLocal, "S"))
		away := own(f.tcp(portNode2, "S"))
		for _, fixture := range []fixture{
			onwards("SYN", syn, 1), onwards("ACK", ack, 1), onwards("UDP", udp, 7),
			onwards("the last row that is looked at", syn, 32), tooFar, fromNode2,
			{
				name: "the primary looks up a datagram at this node", in: withFlags(udp.arrived(v4, 2), flagLookup).frame(), verdict: xdpTX,
				out: toNode2(withFlags(udp.arrived(v4, 2).onwards(v4.node2), flagLookup)), counts: toPrimary,
			},
			{
				name: "the primary looks up an ACK at this node, another node is next", in: ack.arrived(v4, 3, 2).frame(), verdict: xdpTX,
				out: toNode2(ack.arrived(v4, 3).onwards(v4.node2)), counts: asked,
			},
			{
				name: "an override selects this node: notify the ingress node", in: withFlags(syn.arrived(v4, 2), flagOverride).frame(), verdict: xdpTX,
				out: toNode2(withFlags(syn.arrived(v4, 0).onwards(v4.node2), flagRedirect)),
			},
			{name: "only this node has endpoints", in: nobody.frame(), verdict: xdpDrop, counts: join(f.received(nobody), lost)},
			{name: "Local", in: local.frame(), verdict: xdpDrop, counts: join(f.received(local), lost)},
			{
				name: "the row belongs to another node", in: away.frame(), verdict: xdpTX,
				out: toNode2(away.tunnelled(v4.node2, 2)), counts: f.received(away),
			},
		} {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

// A packet causes at most two encapsulated packets, because the second node queries no other.
func TestOwnSourceIsDelegatedOnce(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		ack := f.tcp(portChain, "A").with(func(p *packet) { p.from = netip.AddrPortFrom(f.node2, 40000) })
		t.Run(f.name, func(t *testing.T) {
			w.check(t, fixture{
				in: ack.arrived(v4, selfID).frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]),
				counts: f.opened(portChain),
			})
		})
	}
}
