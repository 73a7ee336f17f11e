// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

var serviceProxyMode bpf.DatapathServiceProxyMode

func newWorldBeside(t *testing.T, mode bpf.DatapathServiceProxyMode) *world {
	t.Helper()
	serviceProxyMode = mode
	defer func() { serviceProxyMode = bpf.DatapathServiceProxyModeSERVICE_PROXY_NONE }()
	return newWorld(t)
}

func (w *world) take(t *testing.T, f family, ports ...uint16) {
	t.Helper()
	for port := portCluster; port <= portClusterTwin; port++ {
		taken := uint32(0)
		if slices.Contains(ports, port) {
			taken = 1
		}
		put(t, w.MigratedFrontends, f.frontend(port).Id, taken)
	}
}

// proxied reports whether the program has recorded the packet's flow as the service proxy's.
func (w *world) proxied(t *testing.T, flow bpf.DatapathFlow) bool {
	t.Helper()
	var noted uint32
	return w.ProxyConnections.Lookup(flow, &noted) == nil
}

type step struct {
	name string
	packet
	left bool
}

func (w *world) steps(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		before := sum(t, w.EventCounts, uint32(bpf.DatapathEventEVENT_PASSED_TO_PROXY))
		frame := s.frame()
		got := w.ingress(t, frame)
		left := sum(t, w.EventCounts, uint32(bpf.DatapathEventEVENT_PASSED_TO_PROXY)) - before
		if (left == 1) != s.left {
			t.Errorf("%s: passed to the service proxy %d times, want %t", s.name, left, s.left)
		}
		if s.left && (got.verdict != xdpPass || !slices.Equal(got.frame, frame)) {
			t.Errorf("%s: verdict %v, want XDP_PASS with the frame unchanged", s.name, got.verdict)
		}
	}
}

// TestServiceProxyFrom claims a frontend from the service proxy: connections opened before stay with the
// service proxy.
func TestServiceProxyFrom(t *testing.T) {
	w := newWorldBeside(t, bpf.DatapathServiceProxyModeSERVICE_PROXY_FROM)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			before, begun, later := from(f.tcp(portCluster, "A"), 50000), from(f.tcp(portCluster, "S"), 50001), from(f.tcp(portCluster, "S"), 50002)
			w.take(t, f)
			w.steps(t, []step{
				{"packet of an earlier connection", before, true},
				{"one begins", begun, true},
				{"to another node", from(f.tcp(portNode2, "S"), 50003), true},
				{"a datagram", f.udp(portCluster), true},
			})
			if w.proxied(t, flowOf(f, before.from, before.to, 6)) || !w.proxied(t, flowOf(f, begun.from, begun.to, 6)) {
				t.Error("want only new connections recorded as proxied")
			}
			put(t, w.ProxyConnections, flowOf(f, before.from, before.to, 6), uint32(1))
			w.take(t, f, portCluster, portNode2)
			w.steps(t, []step{
				{"earlier connection after the takeover", before, true},
				{"packet of a connection begun before", from(f.tcp(portCluster, "A"), 50001), true},
				{"packet of a connection begun before, to another node", from(f.tcp(portNode2, "A"), 50003), true},
				{"FIN of the connection", from(f.tcp(portCluster, "FA"), 50001), true},
				{"new connection after the takeover", later, false},
				{"next packet", from(f.tcp(portCluster, "A"), 50002), false},
				{"packet of an unknown connection", from(f.tcp(portCluster, "A"), 50004), false},
				{"datagram of an earlier flow", f.udp(portCluster), true},
			})
			// The frontend is claimed after the service proxy answered a SYN.
			underWay := from(f.tcp(portCluster, "S"), 50005)
			w.offer(t, underWay, 77)
			w.steps(t, []step{
				{"invalid acknowledgement", acknowledging(from(f.tcp(portCluster, "A"), 50005), 77), false},
				{"ACK of the SYN-ACK", acknowledging(from(f.tcp(portCluster, "A"), 50005), 78), true},
				{"packet after it", acknowledging(from(f.tcp(portCluster, "A"), 50005), 5000), true},
			})
		})
	}
}

// TestServiceProxyTo releases a frontend to the service proxy: new connections are left to it, existing
// ones continue. Only connections of clients that received the SYN-ACK are recorded.
func TestServiceProxyTo(t *testing.T) {
	w := newWorldBeside(t, bpf.DatapathServiceProxyModeSERVICE_PROXY_TO)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.take(t, f, portCluster)
			begun := from(f.tcp(portCluster, "S"), 50001)
			w.steps(t, []step{
				{"connection of ours", f.tcp(portCluster, "A"), false},
				{"connection of ours to another node", f.tcp(portNode2, "A"), false},
				{"one begins", begun, true},
				{"invalid acknowledgement", acknowledging(from(f.tcp(portCluster, "A"), 50001), 1), false},
			})
			w.offer(t, begun, 0xffffffff)
			w.steps(t, []step{
				{"retransmitted SYN", begun, true},
				{"acknowledgement too low", acknowledging(from(f.tcp(portCluster, "A"), 50001), 0xffffffff), false},
				{"no ACK flag", from(f.tcp(portCluster, "F"), 50001), false},
				{"RST of the client", from(f.tcp(portCluster, "R"), 50001), true},
			})
			if w.proxied(t, flowOf(f, begun.from, begun.to, 6)) {
				t.Error("connection recorded without a reply from the client")
			}
			w.steps(t, []step{
				{"next packet", acknowledging(from(f.tcp(portCluster, "A"), 50001), 0), true},
				{"and the one after", acknowledging(from(f.tcp(portCluster, "A"), 50001), 5000), true},
				{"FIN", from(f.tcp(portCluster, "FA"), 50001), true},
				{"new connection to another node", from(f.tcp(portNode2, "S"), 50001), true},
				{"a datagram", f.udp(portCluster), false},
			})
			w.offer(t, from(f.tcp(portNode2, "S"), 50001), 77)
			w.steps(t, []step{
				{"next packet to another node", acknowledging(from(f.tcp(portNode2, "A"), 50001), 78), true},
			})
			w.offer(t, from(f.tcp(9, "S"), 50001), 77)
			var number uint32
			if w.ProxyHandshakes.Lookup(flowOf(f, from(f.tcp(9, "S"), 50001).from, f.tcp(9, "S").to, 6), &number) == nil {
				t.Error("handshake recorded for a port without a frontend")
			}
		})
	}
}

// TestServiceProxyFlood checks that a flood of SYNs and ACKs, with SYN-ACKs of the service proxy, evicts no
// record of its connections.
func TestServiceProxyFlood(t *testing.T) {
	w := newWorldBeside(t, bpf.DatapathServiceProxyModeSERVICE_PROXY_TO)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			held := from(f.tcp(portCluster, "S"), 50001)
			w.ingress(t, held.frame())
			w.offer(t, held, 1000)
			data := acknowledging(from(f.tcp(portCluster, "A"), 50001), 1001)
			w.steps(t, []step{{"a connection", data, true}})
			for port := range uint16(4 * w.ProxyConnections.MaxEntries()) {
				spoofed := from(f.tcp(portCluster, "S"), 1024+port)
				if spoofed.from == held.from {
					continue
				}
				w.ingress(t, spoofed.frame())
				w.offer(t, spoofed, uint32(port)<<8)
				w.ingress(t, acknowledging(from(f.tcp(portCluster, "A"), 1024+port), 4711).frame())
			}
			w.steps(t, []step{{"packet of the connection after a flood", data, true}})
			next := from(f.tcp(portCluster, "S"), 50002)
			w.steps(t, []step{{"another new connection", next, true}})
			w.offer(t, next, 5)
			w.steps(t, []step{{"packet after it", acknowledging(from(f.tcp(portCluster, "A"), 50002), 6), true}})
		})
	}
}

func from(p packet, port uint16) packet {
	return p.with(func(p *packet) { p.from = netip.AddrPortFrom(p.from.Addr(), port) })
}

func acknowledging(p packet, number uint32) packet {
	return p.with(func(p *packet) { p.tcp = func(tcp *layers.TCP) { tcp.Ack = number } })
}

// offer sends the stack's SYN-ACK with this sequence number.
func (w *world) offer(t *testing.T, syn packet, sequence uint32) {
	t.Helper()
	answer := syn.with(func(p *packet) {
		p.from, p.to = p.to, p.from
		p.flags, p.tcp = "SA", func(tcp *layers.TCP) { tcp.Seq = sequence }
	}).frame()
	if out := w.egress(t, answer); !slices.Equal(out, answer) {
		t.Error("the reply of the service proxy was modified")
	}
}

// TestServiceProxyServesOthers passes packets without a frontend to the stack, as for Services that are not
// migrated yet: ports of a shared VIP, and addresses of a pool or aggregate.
func TestServiceProxyServesOthers(t *testing.T) {
	for name, test := range map[string]struct {
		mode bpf.DatapathServiceProxyMode
		want verdict
	}{
		"none":   {bpf.DatapathServiceProxyModeSERVICE_PROXY_NONE, xdpDrop},
		"yields": {bpf.DatapathServiceProxyModeSERVICE_PROXY_FROM, xdpPass},
		"takes":  {bpf.DatapathServiceProxyModeSERVICE_PROXY_TO, xdpPass},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldBeside(t, test.mode)
			for _, f := range families {
				w.putPool(t, f)
				for name, frame := range withoutFrontend(f) {
					got := w.ingress(t, frame)
					if got.verdict != test.want || test.want == xdpPass && !slices.Equal(got.frame, frame) {
						t.Errorf("%s, %s: verdict %v, want %v with the frame unchanged", f.name, name, got.verdict, test.want)
					}
				}
			}
		})
	}
}

func withoutFrontend(f family) map[string][]byte {
	_, ofPool, _, _ := f.pool()
	_, ofAggregate, _ := f.aggregate()
	data, datagram := f.tcp(9, "A"), f.udp(9)
	to := func(address netip.Addr) packet {
		return data.with(func(p *packet) { p.to = netip.AddrPortFrom(address, portCluster) })
	}
	return map[string][]byte{
		"port without a frontend":               data.frame(),
		"datagram to a port without a frontend": datagram.frame(),
		"in a VLAN":                             tagged(data.frame(), 0x81000007),
		"an address of a pool":                  to(ofPool).frame(),
		"address of a pool in a VLAN":           tagged(to(ofPool).frame(), 0x81000007),
		"address of an aggregate":               to(ofAggregate).frame(),
	}
}
