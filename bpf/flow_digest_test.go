// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"maps"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// The record of an evicted established flow selects the endpoint for its packets and translates replies.
// Other flows leave no record.
func TestFlowDigest(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		pod := f.pods[0]
		syn, ack := f.tcp(portCluster, "S"), f.tcp(portCluster, "A")
		data := answer(syn, pod, "A")
		translated := data.with(func(p *packet) { p.from = f.to(portCluster) })
		handshake := []packet{syn, answer(syn, pod, "SA"), ack}
		fin, serverFIN := f.tcp(portCluster, "FA"), answer(syn, pod, "FA")
		rst, serverRST := f.tcp(portCluster, "R"), answer(syn, pod, "RA")
		other := f.pods[1]
		for _, test := range []struct {
			name string
			// before is sent, then the flow tables are emptied, then after is sent, of which the last packet
			// is checked.
			before, after []packet
			want          []byte
		}{
			{"reply", handshake, []packet{data}, translated.frame()},
			{"replies", handshake, []packet{data, data}, translated.frame()},
			{"client's packet", handshake, []packet{ack}, delivered(ack, pod)},
			{"client's packet after a spoofed SYN", handshake, []packet{syn, ack}, delivered(ack, pod)},
			{"client's packets after a spoofed SYN", handshake, []packet{syn, ack, ack}, delivered(ack, pod)},
			{"reply after a spoofed SYN and a packet of the client", handshake, []packet{syn, ack, data}, translated.frame()},
			{"reply after a packet of the client", handshake, []packet{ack, data}, translated.frame()},
			{"client's packet after a reply", handshake, []packet{data, ack}, delivered(ack, pod)},
			{"reply of a flow that was not established", []packet{syn, answer(syn, pod, "SA")}, []packet{data}, data.frame()},
			{"reply of an unvalidated flow", []packet{ack, ack}, []packet{data}, data.frame()},
			{"reply to another port", handshake, []packet{data.with(func(p *packet) {
				p.to = netip.AddrPortFrom(p.to.Addr(), 40001)
			})}, data.with(func(p *packet) { p.to = netip.AddrPortFrom(p.to.Addr(), 40001) }).frame()},
			{"reply of another endpoint", handshake, []packet{answer(syn, f.pods[1], "A")}, answer(syn, f.pods[1], "A").frame()},
			{"SYN-ACK of a connection to the endpoint without the VIP", handshake, []packet{answer(syn, pod, "SA")}, answer(syn, pod, "SA").frame()},
			{"further replies of a connection without the VIP", handshake, []packet{answer(syn, pod, "SA"), data}, data.frame()},
			{"new connection selects again", handshake, []packet{syn}, delivered(syn, f.pods[1])},
			{"closed by both sides", append(handshake[:3:3], fin, serverFIN.taking(fin), ack), []packet{ack}, delivered(ack, f.pods[1])},
			{"reply of a closed connection", append(handshake[:3:3], serverFIN, fin), []packet{data}, data.frame()},
			{"reset by the client", append(handshake[:3:3], rst), []packet{data}, data.frame()},
			{"later flow with the same port", append(handshake[:3:3], serverRST, syn, answer(syn, other, "SA"), ack),
				[]packet{ack}, delivered(ack, other)},
			{"RST validated by its sequence number", []packet{syn, answer(syn, pod, "SA"), f.tcp(portCluster, "RA")}, []packet{ack}, delivered(ack, other)},
			{"half closed", append(handshake[:3:3], fin), []packet{data}, translated.frame()},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				defer w.pointTo(t, f, 0)
				for i, p := range test.before {
					if i == len(handshake) {
						w.pointTo(t, f, 1)
					}
					w.play(t, p)
				}
				w.wipe(t)
				w.pointTo(t, f, 1)
				last := test.after[len(test.after)-1]
				w.play(t, test.after[:len(test.after)-1]...)
				if last.from == f.client {
					checkFrame(t, w.ingress(t, last.frame()).frame, test.want)
				} else {
					checkFrame(t, w.egress(t, last.frame()), test.want)
				}
			})
		}
	}
}

// A record is ignored if its endpoint was removed or its id reused.
func TestFlowDigestOfGoneEndpoint(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for name, replacement := range map[string]netip.AddrPort{"gone": {}, "id reused": netip.AddrPortFrom(f.pods[1].Addr(), 9999)} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				ack := f.tcp(portCluster, "A")
				w.establish(t, ack, f.pods[0])
				w.wipe(t)
				w.pointTo(t, f, 1)
				id := 2*(f.endpointSlot-1) + 1
				w.putEndpoint(t, id, replacement)
				defer w.pointTo(t, f, 0)
				defer w.putEndpoint(t, id, f.pods[0])
				checkFrame(t, w.ingress(t, ack.frame()).frame, delivered(ack, f.pods[1]))
				reply := answer(ack, f.pods[0], "A").frame()
				checkFrame(t, w.egress(t, reply), reply)
			})
		}
	}
}

// With full buckets, the latest established flows have records.
func TestFlowDigestFull(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			ack := f.tcp(portCluster, "A")
			for port := range uint16(evictedBuckets * 8) {
				w.establish(t, ack.fromPort(1024+port), f.pods[0])
			}
			w.establish(t, ack, f.pods[0])
			w.wipe(t)
			w.pointTo(t, f, 1)
			defer w.pointTo(t, f, 0)
			checkFrame(t, w.ingress(t, ack.frame()).frame, delivered(ack, f.pods[0]))
		})
	}
}

// A connection that was closed here may continue on another node, if the client reused its port while that
// node owned the row. The chain is therefore queried before the old entry is used.
func TestStaleConnection(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		pod := f.pods[0]
		syn, ack, fin := f.tcp(portChain, "S"), f.tcp(portChain, "A"), f.tcp(portChain, "FA")
		closed := []packet{syn, answer(syn, pod, "SA"), ack, fin, answer(syn, pod, "FA").taking(fin)}
		served := f.received(ack)
		asked := join(served, event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED))
		for _, test := range []struct {
			name   string
			before []packet
			idle   uint32
			in     []byte
			want   tally
		}{
			{"established", closed[:3], 7000, ack.frame(), served},
			{"established, idle longer than the timeout", closed[:3], 8000, ack.frame(), asked},
			{"closing", closed[:4], 200, ack.frame(), served},
			{"closed a moment ago", closed, 5, ack.frame(), served},
			{"closed for a while", closed, 15, ack.frame(), asked},
			{"closed, unknown to other nodes", closed, 15, ack.arrived(v4, selfID).frame(), nil},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				w.play(t, test.before...)
				w.age(t, test.idle)
				earlier := w.tally(t)
				w.ingress(t, test.in)
				if got := w.tally(t).since(earlier); !maps.Equal(got, join(test.want)) {
					t.Errorf("counters increased by %v, want %v", got, test.want)
				}
			})
		}
	}
}

// A flood of answered datagrams evicts no record of a connection, which has separate slots.
func TestFlowDigestInDatagramFlood(t *testing.T) {
	const connections = 200
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			var established []packet
			for i := range connections {
				p := f.tcp(portCluster, "A").fromPort(uint16(10000 + i))
				w.establish(t, p, f.pods[0])
				established = append(established, p)
			}
			s := newSpoofer(w, f.udp(portCluster))
			for range 4 * w.FlowDigests.MaxEntries() * uint32(bpf.DatapathShapeDIGEST_SLOTS) {
				s.newSource()
				s.send(t)
				s.answered(t, f.pods[0], 0)
				s.send(t)
			}
			w.wipe(t)
			w.pointTo(t, f, 1)
			defer w.pointTo(t, f, 0)
			lost := 0
			for _, p := range established {
				if !bytes.Equal(w.ingress(t, p.frame()).frame, delivered(p, f.pods[0])) {
					lost++
				}
			}
			if lost != 0 {
				t.Errorf("%d of %d connections were evicted", lost, connections)
			}
		})
	}
}
