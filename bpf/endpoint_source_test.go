// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// A datagram from the address and port of an endpoint creates no flow of a VIP, because two endpoints would
// answer each other indefinitely. Other ports of the pod, TCP and known flows are served.
func TestEndpointSource(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		w.pointTo(t, f, 0)
		pod := f.pods[1]
		key := bpf.DatapathEndpointPort{Address: address(pod.Addr()), Port: network16(pod.Port())}
		from := func(p packet, source netip.AddrPort) packet {
			p.from = source
			return p
		}
		other := netip.AddrPortFrom(pod.Addr(), pod.Port()+1)
		question := from(f.udp(portCluster), pod)
		for _, test := range []struct {
			name    string
			in      packet
			known   bool
			refused bool
		}{
			{"port of the endpoint", question, false, true},
			{"another port", from(f.udp(portCluster), other), false, false},
			{"query of a known flow", question, true, false},
			{"TCP", from(f.tcp(portCluster, "S"), pod), false, false},
		} {
			w.forget(t)
			empty(t, w.EndpointPorts)
			if test.known {
				w.ingress(t, test.in.frame())
			}
			put(t, w.EndpointPorts, key, uint32(1))
			before := w.tally(t)
			verdict := w.ingress(t, test.in.frame()).verdict
			refused := w.tally(t).since(before)[dropName(bpf.DatapathDropReasonDROP_ENDPOINT_SOURCE)]
			if (verdict == xdpDrop) != test.refused || (refused == 1) != test.refused {
				t.Errorf("%s, %s: verdict %d, rejected %d times", f.name, test.name, verdict, refused)
			}
		}
	}
}

// The endpoint's node drops datagrams to VIPs from the endpoint's port that belong to no flow: endpoints of
// other nodes would answer them.
func TestDatagramFromEndpointPortIsDropped(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		w.pointTo(t, f, 0)
		pod := f.pods[0]
		key := bpf.DatapathEndpointPort{Address: address(pod.Addr()), Port: network16(pod.Port())}
		put(t, w.EndpointPorts, key, uint32(1))
		to := func(p packet, destination netip.AddrPort) packet {
			p.to = destination
			return p
		}
		question := to(answer(f.udp(portCluster), pod, ""), f.to(portCluster))
		for _, test := range []struct {
			name    string
			in      packet
			refused bool
		}{
			{"to a VIP", question, true},
			{"to a port without a frontend", to(question, f.to(9)), false},
			{"to another host", to(question, f.client), false},
			{"from another port", question.with(func(p *packet) { p.from = netip.AddrPortFrom(pod.Addr(), 9) }), false},
			{"TCP", to(answer(f.tcp(portCluster, "S"), pod, "S"), f.to(portCluster)), false},
		} {
			w.forget(t)
			before := w.tally(t)
			verdict, _ := w.runEgress(t, test.in.frame())
			refused := w.tally(t).since(before)[dropName(bpf.DatapathDropReasonDROP_ENDPOINT_SOURCE)]
			if (verdict != tcxNext) != test.refused || (refused == 1) != test.refused {
				t.Errorf("%s, %s: verdict %d, rejected %d times", f.name, test.name, verdict, refused)
			}
		}
	}
}
