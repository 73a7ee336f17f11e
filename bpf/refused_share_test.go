// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// refuseNearly refuses all rows except the first, which belongs to the first pod and not to the flow.
func refuseNearly(f family, flow packet) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		if _, endpoint := flowHash(flow); endpoint>>23 == 0 {
			t.Fatal("the flow hashes to the row that remains")
		}
		w.putEndpointRows(t, f, func(row int) int {
			if row == 0 {
				return 0
			}
			return refused
		})
	}
}

// Only new flows are refused in a refusing row.
func TestRefusedShare(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, fixture := range refusedShares(f) {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

func refusedShares(f family) []fixture {
	syn, udp, ack := f.tcp(portCluster, "S"), f.udp(portCluster), f.tcp(portCluster, "A")
	local := f.tcp(portLocal, "S")
	reason := dropped(bpf.DatapathDropReasonDROP_BACKEND_INVALID)
	told, handed := event(bpf.DatapathEventEVENT_REJECT_SENT), event(bpf.DatapathEventEVENT_PASSED_TO_KERNEL)
	all := func(t *testing.T, w *world) { w.putEndpointRows(t, f, func(int) int { return refused }) }
	back := func(p *packet) { p.source, p.destination = routerMAC, uplinkMAC }
	before := func(p packet, established bool, in packet) fixture {
		return fixture{
			given: func(t *testing.T, w *world) {
				w.play(t, p)
				if established {
					w.establish(t, p, f.pods[0])
				}
				all(t, w)
			},
			in: in.frame(), verdict: xdpPass, out: delivered(in, f.pods[0]), counts: f.received(in),
		}
	}
	named := func(name string, fixture fixture) fixture { fixture.name = name; return fixture }
	return []fixture{
		{
			name: "SYN", given: all, in: syn.frame(), verdict: xdpTX, out: f.refused(syn).frame(),
			counts: join(f.received(syn), reason, told),
		},
		{
			name: "UDP", given: all, in: udp.frame(), verdict: xdpTX, out: f.told(f.portUnreachable(), udp).frame(),
			counts: join(f.received(udp), reason, told),
		},
		{
			name: "SYN, policy Local", given: all, in: local.frame(), verdict: xdpTX, out: f.refused(local).frame(),
			counts: join(f.received(local), reason, told),
		},
		{
			name: "SYN from a node", given: all, in: syn.arrived(v4, 0).frame(), verdict: xdpPass, handed: true,
			out: f.refused(syn).with(back).frame(), counts: join(reason, told, handed),
		},
		{
			name: "ACK of an unknown connection, all refused", given: all, in: ack.frame(), verdict: xdpDrop,
			counts: join(f.received(ack), dropped(bpf.DatapathDropReasonDROP_NO_ENDPOINT)),
		},
		named("half-open connection", before(syn, false, syn)),
		named("established connection", before(syn, true, ack)),
		named("datagram of a flow", before(udp, true, udp)),
	}
}

// A packet of an unknown connection is sent to the endpoint of the next accepting row, because only the pod
// knows whether the connection exists.
func TestRefusedShareQueriesEndpoint(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		ack := f.tcp(portCluster, "A")
		_, hash := flowHash(ack)
		w.check(t, fixture{
			given: func(t *testing.T, w *world) {
				w.putEndpointRows(t, f, func(row int) int {
					if row == int(hash>>23+2)%512 {
						return 0
					}
					return refused
				})
			},
			in: ack.frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]),
			counts: join(f.received(ack), f.opened(portCluster)),
		})
	}
}

// A client with an affinity record is accepted, other clients are refused.
func TestRefusedShareUnderAffinity(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			affineWorld(t, w, f)
			w.pointTo(t, f, 0)
			defer w.pointTo(t, f, 0)
			syn := f.tcp(portCluster, "S")
			w.establish(t, syn, f.pods[0])
			refuseNearly(f, syn.fromPort(0))(t, w)
			next := syn.fromPort(2000)
			checkFrame(t, w.ingress(t, next.frame()).frame, delivered(next, f.pods[0]))
			w.forget(t)
			if got := w.ingress(t, next.frame()); got.verdict != xdpTX {
				t.Errorf("client without a record: verdict %v, want %v (RST)", got.verdict, xdpTX)
			}
		})
	}
}
