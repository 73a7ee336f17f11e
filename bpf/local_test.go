// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// sharedLocal changes the frontends of a port to policy Local with a node table.
func (w *world) sharedLocal(t *testing.T, f family, port uint16, hasEndpoints bool) {
	t.Helper()
	w.changeFrontends(t, f, port, func(frontend *bpf.DatapathFrontend) {
		frontend.Flags |= uint32(bpf.DatapathFrontendFlagFRONTEND_LOCAL)
		if !hasEndpoints {
			frontend.Endpoints = 0
		}
	})
}

// Local frontends of a VIP that this node announces for other frontends.
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
				// It may be at the node selected by stage 1.
				name: "unknown connection, endpoint here", given: with(true), in: ack.frame(), verdict: xdpTX,
				out:    ack.tunnelled(v4.node2, selfID, 3, 4).sent(uplinkMAC, node2MAC),
				counts: join(f.received(ack), event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)),
			},
			{
				name: "lookup by another node, no endpoint here", given: with(false), in: syn.arrived(f, 0).frame(), verdict: xdpTX,
				out:    toNode2(syn.arrived(f, 2).onwards(v4.node2).with(func(t *tunnel) { t.zones = 8 })),
				counts: event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED),
			},
			{
				name: "lookup by another node, endpoint here", given: with(true), in: syn.arrived(f, 0).frame(),
				verdict: xdpPass, out: delivered(syn, f.pods[0]), counts: f.opened(portChainAway),
			},
		} {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

// While the last endpoint of a Local frontend on this node drains, its connections continue and new ones
// are forwarded.
func TestSharedLocalDrains(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			w.sharedLocal(t, f, portNode2, true)
			w.establish(t, f.tcp(portNode2, "S"), f.pods[0])
			w.sharedLocal(t, f, portNode2, false)
			ack := f.tcp(portNode2, "A")
			if got := w.ingress(t, ack.frame()); got.verdict != xdpPass {
				t.Errorf("packet of the connection: verdict %v, want %v", got.verdict, xdpPass)
			} else {
				checkFrame(t, got.frame, delivered(ack, f.pods[0]))
			}
			next := f.tcp(portNode2, "S").with(func(p *packet) { p.from = netip.AddrPortFrom(p.from.Addr(), 40001) })
			if got := w.ingress(t, next.frame()); got.verdict != xdpTX {
				t.Errorf("new connection: verdict %v, want %v", got.verdict, xdpTX)
			}
		})
	}
}

// Clients may arrive on another node, so their segments are limited.
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
			limit := uint16(1500 - overhead() - 40)
			if f.vip.Is6() {
				limit -= 20
			}
			reply := answer(syn, f.pods[0], "SA").with(func(p *packet) { p.tcpOptions = []layers.TCPOption{mss(1460)} })
			want := reply.with(func(p *packet) { p.from, p.tcpOptions = syn.to, []layers.TCPOption{mss(limit)} })
			checkFrame(t, w.egress(t, reply.frame()), want.frame())
		})
	}
}

// A client of the last local endpoint, now removed, is forwarded like new flows.
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
					t.Fatalf("verdict %v, want %v", got.verdict, xdpTX)
				}
				checkFrame(t, got.frame, known.tunnelled(v4.node2, 2, selfID, 3, 4).sent(uplinkMAC, node2MAC))
			})
		}
	}
}

// The node with a Local frontend's flow notifies the primary of the flow's row at its start and end, by the
// packet, which is returned.
func TestLocalFlowRedirects(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		pod := f.pods[0]
		syn, ack, reset := f.tcp(portNode2, "S"), f.tcp(portNode2, "A"), f.tcp(portNode2, "R")
		fin := f.tcp(portNode2, "FA")
		synAck, theirFIN := answer(syn, pod, "SA"), answer(syn, pod, "FA")
		last := ack.with(func(p *packet) { p.sequence, p.payload = 1000+uint32(len(fin.payload))+1, "" })
		established := []packet{syn, synAck, ack}
		told := func(p packet, owner uint16) []byte {
			return toNode2(withFlags(p.tunnelled(v4.node2, owner), flagRedirect).with(func(t *tunnel) { t.ingress = 2 }))
		}
		moved := func(t *testing.T) { put(t, w.RowGroups, ack.rowGroup(), bpf.DatapathRowGroup{Moved: w.ago(t, 3)}) }
		for _, test := range []struct {
			name   string
			before []packet
			later  uint32
			given  func(*testing.T)
			in     packet
			out    []byte
		}{
			{name: "first packet of a handshake", in: syn},
			{name: "last packet of a handshake", before: []packet{syn, synAck}, in: ack, out: told(ack, selfID)},
			{name: "another packet", before: established, in: ack},
			{name: "one hour later", before: established, later: 3600, in: ack, out: told(ack, selfID)},
			{name: "row moved", before: established, later: 6, given: moved, in: ack, out: told(ack, selfID)},
			{name: "shortly before the row moved", before: established, later: 2, given: moved, in: ack},
			{name: "a reset", before: append(established, answer(syn, pod, "A")), in: reset, out: told(reset, 0)},
			{name: "second RST", before: append(established, answer(syn, pod, "A"), reset), in: reset},
			{name: "FIN of the client", before: established, in: fin},
			{
				name: "last packet of the client", before: append(established, fin, theirFIN.taking(fin)),
				in: last, out: told(last, 0),
			},
			{name: "FIN of the client after that of the endpoint", before: append(established, theirFIN), in: fin, out: told(fin, 0)},
			{name: "a datagram", before: []packet{f.udp(portNode2), answer(f.udp(portNode2), pod, "")}, in: f.udp(portNode2)},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				w.unmark(t, ack)
				w.pointTo(t, f, 0)
				w.sharedLocal(t, f, portNode2, true)
				w.play(t, test.before...)
				w.age(t, test.later)
				if test.given != nil {
					test.given(t)
				}
				got := w.ingress(t, test.in.frame())
				if test.out == nil {
					test.out = delivered(test.in, pod)
				}
				checkFrame(t, got.frame, test.out)
				w.unmark(t, ack)
			})
		}
	}
}

// The handling of redirects about a Local frontend's flow.
func TestLocalOverrides(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		syn, ack, own := f.tcp(portNode2, "S"), f.tcp(portNode2, "A"), f.tcp(portCluster, "A")
		asked := event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)
		final := uint8(flagOverride | flagRedirect)
		redirect := func(owner uint16, flags uint8) tunnel {
			return withFlags(own.arrived(v4, owner), flagRedirect|flags).with(func(t *tunnel) { t.ingress = selfID })
		}
		here := func(p packet) func(*testing.T, *world) {
			return func(t *testing.T, w *world) {
				w.pointTo(t, f, 0)
				w.sharedLocal(t, f, p.to.Port(), true)
			}
		}
		for _, c := range []overrideCase{
			{of: ack, fixture: fixture{
				name: "no override: lookup at the primary", in: ack.frame(), verdict: xdpTX,
				out: toNode2(ack.tunnelled(v4.node2, selfID)), counts: join(f.received(ack), asked),
			}},
			{of: own, fixture: fixture{
				name: "no override on the primary", in: own.frame(), verdict: xdpPass,
				out: delivered(own, f.pods[0]), counts: join(f.received(own), f.opened(portCluster)),
			}},
			{of: ack, except: 3, after: 3, fixture: fixture{
				name: "the ingress node forwards to the owner", in: ack.frame(), verdict: xdpTX,
				out:    toNode3(withFlags(ack.tunnelled(node3, selfID), flagOverride|flagLookup)),
				counts: join(f.received(ack), overrideUsed),
			}},
			{of: syn, except: 3, after: 3, fixture: fixture{
				name: "the ingress node forwards a SYN, too", in: syn.frame(), verdict: xdpTX,
				out:    toNode3(withFlags(syn.tunnelled(node3, selfID), flagOverride|flagLookup)),
				counts: join(f.received(syn), overrideUsed),
			}},
			{of: own, except: 3, after: 3, fixture: fixture{
				name: "the primary forwards a lookup to the owner", in: own.arrived(v4, 2).frame(), verdict: xdpTX,
				out:    toNode3(own.arrived(v4, 2).onwards(node3).with(func(t *tunnel) { t.zones = 8 })),
				counts: overrideUsed,
			}},
			{of: own, except: 3, after: 3, fixture: fixture{
				name: "the primary forwards only once", in: own.arrived(v4, 2).with(func(t *tunnel) { t.zones = 8 }).frame(), verdict: xdpTX,
				out:    toNode2(own.arrived(v4, 2).onwards(v4.node2).with(func(t *tunnel) { t.zones = 8 })),
				counts: event(bpf.DatapathEventEVENT_LOOKUP_RETURNED),
			}},
			{of: own, except: 2, after: 2, fixture: fixture{
				name: "the owner looks up a flow it has lost", in: own.arrived(v4, 2).frame(), verdict: xdpTX,
				out:    toNode2(own.arrived(v4, 2).onwards(v4.node2)),
				counts: event(bpf.DatapathEventEVENT_LOOKUP_RETURNED),
			}},
			{of: own, after: 2, fixture: fixture{
				name: "a redirect is accepted, and the packet is returned", in: redirect(2, 0).frame(), verdict: xdpTX,
				out:    toNode2(withFlags(redirect(2, 0), final).onwards(v4.node2)),
				counts: overrideLearned,
			}},
			{of: own, except: 3, after: 3, fixture: fixture{
				name: "a redirect about another node is dropped", in: redirect(3, 0).frame(), verdict: xdpDrop,
				counts: dropped(bpf.DatapathDropReasonDROP_TUNNEL_REDIRECT),
			}},
			{of: own, except: 2, fixture: fixture{
				name: "the flow is closed", in: redirect(0, 0).frame(), verdict: xdpTX,
				out: toNode2(withFlags(redirect(2, 0), final).onwards(v4.node2)),
			}},
			{of: own, except: 3, after: 3, fixture: fixture{
				name: "the flow of another node is not closed", in: redirect(0, 0).frame(), verdict: xdpTX,
				out: toNode2(withFlags(redirect(2, 0), final).onwards(v4.node2)),
			}},
			{of: own, except: 2, fixture: fixture{
				name: "an invalid override: this node serves", in: redirect(0, flagLookup).frame(), verdict: xdpPass,
				out: delivered(own, f.pods[0]), counts: f.opened(portCluster),
			}},
		} {
			t.Run(f.name+"/"+c.name, func(t *testing.T) {
				c.given = here(c.of)
				w.checkOverride(t, c)
			})
		}
	}
}
