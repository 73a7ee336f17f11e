// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

func (w *world) natExempt(t testing.TB, frame []byte) bool {
	t.Helper()
	// The kernel removes the Ethernet header.
	verdict, err := w.NatExempt.Run(&ebpf.RunOptions{Data: frame})
	if err != nil {
		t.Fatal(err)
	}
	return verdict == 1
}

// The filter accepts all packets that the egress program translates. Others that it accepts have an unvalidated
// entry; fragments are reassembled before, and conntrack handles ICMP errors.
func TestNATExemptAgreesWithEgress(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		exempt := 0
		for _, fixture := range replies(f) {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				for _, p := range fixture.before {
					w.ingress(t, p.frame())
				}
				if fixture.given != nil {
					fixture.given(t, w)
				}
				in := fixture.in.frame()
				before := w.tally(t)
				kept := w.natExempt(t, in)
				if kept != w.natExempt(t, in) {
					t.Error("the second run of the filter returned a different result")
				}
				if changes := w.tally(t).since(before); kept && len(changes) > 0 {
					t.Errorf("an exempt packet changed the counters: %v", changes)
				}
				translated := !bytes.Equal(w.egress(t, in), in)
				if translated && !kept {
					t.Error("the egress program translates the reply, but SNAT has already changed its source")
				}
				if kept {
					exempt++
				}
			})
		}
		if exempt < 8 {
			t.Errorf("%s: only %d fixtures are replies of a VIP", f.name, exempt)
		}
	}
}

// The filter counts the event for packets from an endpoint's port without a flow.
func TestNATExemptUnknown(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		pod := f.pods[0]
		other := netip.AddrPortFrom(pod.Addr(), pod.Port()+1)
		key := bpf.DatapathEndpointPort{Address: address(pod.Addr()), Port: network16(pod.Port())}
		put(t, w.EndpointPorts, key, uint32(1))
		for _, test := range []struct {
			name string
			in   packet
			want uint64
		}{
			{"a datagram", answer(f.udp(portCluster), pod, ""), 1},
			{"mid-stream", answer(f.tcp(portCluster, "A"), pod, "A"), 1},
			{"a SYN-ACK", answer(f.tcp(portCluster, "S"), pod, "SA"), 1},
			{"connection opened by the pod", answer(f.tcp(portCluster, "S"), pod, "S"), 0},
			{"another port", answer(f.udp(portCluster), other, ""), 0},
		} {
			w.forget(t)
			before := sums(t, w.EventCounts, int(bpf.DatapathEventEVENTS))
			if w.natExempt(t, test.in.frame()) {
				t.Errorf("%s, %s: exempt from SNAT, want not exempt", f.name, test.name)
			}
			after := sums(t, w.EventCounts, int(bpf.DatapathEventEVENTS))
			if got := after[bpf.DatapathEventEVENT_REPLY_WITHOUT_FLOW] - before[bpf.DatapathEventEVENT_REPLY_WITHOUT_FLOW]; got != test.want {
				t.Errorf("%s, %s: counter increased by %d, want %d", f.name, test.name, got, test.want)
			}
		}
		// A packet truncated behind the addresses has no ports and no endpoint.
		frame := answer(f.udp(portCluster), pod, "").frame()
		before := sums(t, w.EventCounts, int(bpf.DatapathEventEVENTS))
		for ports := range 4 {
			if w.natExempt(t, frame[:len(frame)-len("200")-8+ports]) {
				t.Errorf("%s: a packet with %d bytes of ports is exempt from SNAT", f.name, ports)
			}
		}
		if after := sums(t, w.EventCounts, int(bpf.DatapathEventEVENTS)); !slices.Equal(before, after) {
			t.Errorf("%s: a packet without ports was counted", f.name)
		}
	}
}

func BenchmarkNATExempt(b *testing.B) {
	w := newWorld(b)
	f := families[0]
	known := answer(f.udp(portCluster), f.pods[0], "")
	w.pointTo(b, f, 0)
	w.ingress(b, f.udp(portCluster).frame())
	for name, p := range map[string]packet{"known": known, "unknown": answer(f.tcp(portCluster, "A"), f.pods[1], "A")} {
		b.Run(name, func(b *testing.B) {
			_, took, err := w.NatExempt.Benchmark(p.frame(), 1_000_000, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(took.Nanoseconds()), "ns/packet")
		})
	}
}
