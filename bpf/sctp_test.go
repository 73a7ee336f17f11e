// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// portSCTP is the pods' port: SCTP requires equal ports.
const portSCTP = 8080

func (f family) sctp(flags string) packet {
	return packet{from: f.client, to: f.to(portSCTP), protocol: layers.IPProtocolSCTP, flags: flags, payload: "chunk..."}
}

// serveSCTP adds an SCTP frontend to the VIP, with counters and table of another port, until the test ends.
func (w *world) serveSCTP(t *testing.T, f family, as uint16) {
	t.Helper()
	w.setFrontend(t, f, portSCTP, layers.IPProtocolSCTP, w.frontend(t, f, as, layers.IPProtocolTCP))
	t.Cleanup(func() {
		m, key := w.frontendEntry(f, portSCTP, layers.IPProtocolSCTP)
		if err := m.Delete(key); err != nil {
			t.Error(err)
		}
	})
}

// The checksum does not cover addresses and must stay valid after translation: both frames of a fixture have
// a valid one.
func TestSCTP(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		init, data := f.sctp("S"), f.sctp("A")
		received := func(as uint16, p packet) tally {
			counted := p
			counted.to = f.to(as)
			return f.received(counted)
		}
		serve := func(as uint16) func(*testing.T, *world) {
			return func(t *testing.T, w *world) { w.serveSCTP(t, f, as) }
		}
		short := init.frame()[:len(init.frame())-len(init.payload)-1]
		if f.vip.Is4() {
			short[17]--
		}
		for _, fixture := range []fixture{
			{
				name: "INIT", given: serve(portCluster), in: init.frame(), verdict: xdpPass,
				out: delivered(init, f.pods[0]), counts: join(received(portCluster, init), f.opened(portCluster)),
			},
			{
				name: "INIT to another node", given: serve(portNode2), in: init.frame(), verdict: xdpTX,
				out: init.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), counts: received(portNode2, init),
			},
			{
				name: "DATA of a known association", given: serve(portCluster), before: [][]byte{init.frame()},
				in: data.frame(), verdict: xdpPass, out: delivered(data, f.pods[0]), counts: received(portCluster, data),
			},
			{
				name: "DATA of an unknown association", given: serve(portChain), in: data.frame(), verdict: xdpTX,
				out:    data.tunnelled(v4.node2, selfID, 3).sent(uplinkMAC, node2MAC),
				counts: join(received(portChain, data), event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)),
			},
			{
				name: "DATA of an unvalidated association", given: serve(portChain), before: [][]byte{init.frame()},
				replies: [][]byte{answer(init, f.pods[0], "SA").frame()}, in: data.frame(), verdict: xdpTX,
				out:    data.tunnelled(v4.node2, selfID, 3).sent(uplinkMAC, node2MAC),
				counts: join(received(portChain, data), event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)),
			},
			{
				name: "DATA of an unvalidated association unknown to all nodes", given: serve(portChain), before: [][]byte{init.frame()},
				in: data.arrived(v4, selfID).frame(), verdict: xdpPass, out: delivered(data, f.pods[0]),
			},
			{
				name: "INIT of an unknown association", given: serve(portChain), in: init.frame(), verdict: xdpPass,
				out: delivered(init, f.pods[0]), counts: join(received(portChain, init), f.opened(portChain)),
			},
			{
				name: "without a chunk", given: serve(portCluster), in: short,
				verdict: xdpDrop, counts: dropped(bpf.DatapathDropReasonDROP_MALFORMED),
			},
		} {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

func TestSCTPReply(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			w.serveSCTP(t, f, portCluster)
			init, data := f.sctp("S"), f.sctp("A")
			w.ingress(t, init.frame())
			for _, flags := range []string{"SA", "A"} {
				reply := answer(init, f.pods[0], flags)
				want := reply.with(func(p *packet) { p.from = init.to })
				checkFrame(t, w.egress(t, reply.frame()), want.frame())
				if got := w.ingress(t, data.frame()); got.verdict != xdpPass {
					t.Errorf("next packet of the client: verdict %v, want XDP_PASS", got.verdict)
				}
			}
			other := answer(f.sctp("S"), f.pods[1], "SA")
			checkFrame(t, w.egress(t, other.frame()), other.frame())
		})
	}
}

// ICMP errors about an association in both directions. Ports and the quoted packet's checksum do not change.
func TestSCTPErrors(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			w.serveSCTP(t, f, portCluster)
			init := f.sctp("S")
			w.ingress(t, init.frame())
			for _, kind := range f.errorKinds() {
				for _, shown := range []int{f.header() + 8, 1500} {
					in := f.reported(kind, vipSent(init), shown)
					got := w.ingress(t, in.frame())
					if got.verdict != xdpPass {
						t.Fatalf("%s: %v, want %v", kind.name, got.verdict, xdpPass)
					}
					checkFrame(t, got.frame, f.reported(kind, podSent(init, f.pods[0]), shown).frame())

					toPod := init
					toPod.to = f.pods[0]
					embedded, sent := toPod.ip(), init.ip()
					shown = min(shown, len(sent))
					out := icmp(f.pods[0].Addr(), f.client.Addr(), kind, embedded[:shown])
					want := icmp(f.vip, f.client.Addr(), kind, sent[:shown])
					checkFrame(t, w.egress(t, out.frame()), want.frame())
				}
			}
		})
	}
}
