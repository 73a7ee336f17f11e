// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// sharedLocal makes the frontends of a port Local ones with a table.
func (w *world) sharedLocal(t *testing.T, f family, port uint16, hasEndpoints bool) {
	t.Helper()
	w.changeFrontends(t, f, port, func(frontend *bpf.DatapathFrontend) {
		frontend.Flags |= uint32(bpf.DatapathFrontendFlagFRONTEND_LOCAL)
		if !hasEndpoints {
			frontend.Endpoints = 0
		}
	})
}

// Local frontends whose VIP other frontends have this node announce.
func TestSharedLocal(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		with := func(hasEndpoints bool) func(*testing.T, *world) {
			return func(t *testing.T, w *world) { w.sharedLocal(t, f, portChainAway, hasEndpoints) }
		}
		syn, ack, udp := f.tcp(portChainAway, "S"), f.tcp(portChainAway, "A"), f.udp(portChainAway)
		away := func(p packet) []byte {
			return p.tunnelled(v4.node2, 2, selfID, 3, 4).sent(uplinkMAC, node2MAC)
		}
		for _, fixture := range []fixture{
			{
				name: "SYN, no endpoint here", given: with(false), in: syn.frame(),
				verdict: xdpTX, out: away(syn), counts: f.received(syn),
			},
			{
				name: "UDP, no endpoint here", given: with(false), in: udp.frame(),
				verdict: xdpTX, out: away(udp), counts: f.received(udp),
			},
			{
				name: "unknown connection, no endpoint here", given: with(false), in: ack.frame(),
				verdict: xdpTX, out: away(ack), counts: f.received(ack),
			},
			{
				name: "SYN, endpoint here", given: with(true), in: syn.frame(),
				verdict: xdpPass, out: delivered(syn, f.pods[0]), counts: join(f.received(syn), f.opened(portChainAway)),
			},
			{
				name: "UDP, endpoint here", given: with(true), in: udp.frame(),
				verdict: xdpPass, out: delivered(udp, f.pods[0]), counts: join(f.received(udp), f.opened(portChainAway)),
			},
			{
				// It may be with the node that stage 1 sent it to.
				name: "unknown connection, endpoint here", given: with(true), in: ack.frame(), verdict: xdpTX,
				out:    ack.tunnelled(v4.node2, selfID, selfID, 3).sent(uplinkMAC, node2MAC),
				counts: join(f.received(ack), event(bpf.DatapathEventEVENT_SECOND_CHANCE)),
			},
			{
				name: "asked by another node, no endpoint here", given: with(false), in: syn.arrived(f, 0).frame(), verdict: xdpTX,
				out:    toNode2(syn.arrived(f, 2).onwards(v4.node2).with(func(t *tunnel) { t.zones = 8 })),
				counts: event(bpf.DatapathEventEVENT_SECOND_CHANCE),
			},
			{
				name: "asked by another node, endpoint here", given: with(true), in: syn.arrived(f, 0).frame(),
				verdict: xdpPass, out: delivered(syn, f.pods[0]), counts: f.opened(portChainAway),
			},
		} {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

// The last endpoint of a Local frontend on this node drains: its connections stay,
// new ones go on.
func TestSharedLocalDrains(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			w.sharedLocal(t, f, portNode2, true)
			w.ingress(t, f.tcp(portNode2, "S").frame())
			w.sharedLocal(t, f, portNode2, false)
			ack := f.tcp(portNode2, "A")
			if got := w.ingress(t, ack.frame()); got.verdict != xdpPass {
				t.Errorf("packet of the connection: %v, want %v", got.verdict, xdpPass)
			} else {
				checkFrame(t, got.frame, delivered(ack, f.pods[0]))
			}
			next := f.tcp(portNode2, "S").with(func(p *packet) { p.from = netip.AddrPortFrom(p.from.Addr(), 40001) })
			if got := w.ingress(t, next.frame()); got.verdict != xdpTX {
				t.Errorf("new connection: %v, want %v", got.verdict, xdpTX)
			}
		})
	}
}

// Its clients may come by another node, so their segments are kept small.
func TestSharedLocalKeepsSegmentsSmall(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			w.sharedLocal(t, f, portNode2, true)
			syn := f.tcp(portNode2, "S")
			w.ingress(t, syn.frame())
			// 1500 bytes of MTU, 60 of encapsulation, and the headers.
			limit := uint16(1500 - 60 - 40)
			if f.vip.Is6() {
				limit -= 20
			}
			reply := answer(syn, f.pods[0], "SA").with(func(p *packet) { p.tcpOptions = []layers.TCPOption{mss(1460)} })
			want := reply.with(func(p *packet) { p.from, p.tcpOptions = syn.to, []layers.TCPOption{mss(limit)} })
			checkFrame(t, w.egress(t, reply.frame()), want.frame())
		})
	}
}

// Who had an endpoint here that is gone, and comes back, goes where new flows go: there
// is none here to choose.
func TestSharedLocalEndpointIsGone(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, known := range []packet{f.udp(portChainAway), f.tcp(portChainAway, "S"), f.tcp(portChainAway, "A")} {
			t.Run(f.name+"/"+known.protocol.String()+" "+known.flags, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				w.sharedLocal(t, f, portChainAway, true)
				w.establish(t, known, f.pods[0])
				w.sharedLocal(t, f, portChainAway, false)
				id := 2*(f.endpointSlot-1) + 1
				w.putEndpoint(t, id, netip.AddrPort{})
				defer w.putEndpoint(t, id, f.pods[0])
				got := w.ingress(t, known.frame())
				if got.verdict != xdpTX {
					t.Fatalf("verdict is %v, want %v", got.verdict, xdpTX)
				}
				checkFrame(t, got.frame, known.tunnelled(v4.node2, 2, selfID, 3, 4).sent(uplinkMAC, node2MAC))
			})
		}
	}
}
