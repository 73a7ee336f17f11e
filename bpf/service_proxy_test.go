// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// serviceProxyMode is that of the worlds that are made while it is set.
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
		put(t, w.TakenFrontends, f.frontend(port).Id, taken)
	}
}

// proxied tells whether the program has noted the packet's flow as the service proxy's.
func (w *world) proxied(t *testing.T, flow bpf.DatapathFlow) bool {
	t.Helper()
	var noted uint32
	return w.Proxied.Lookup(flow, &noted) == nil
}

// step is a packet, and whether it is the service proxy's.
type step struct {
	name string
	packet
	left bool
}

func (w *world) steps(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		before := sum(t, w.EventCounts, uint32(bpf.DatapathEventEVENT_LEFT_TO_PROXY))
		frame := s.frame()
		got := w.ingress(t, frame)
		left := sum(t, w.EventCounts, uint32(bpf.DatapathEventEVENT_LEFT_TO_PROXY)) - before
		if (left == 1) != s.left {
			t.Errorf("%s: left to the service proxy %d times, want %t", s.name, left, s.left)
		}
		if s.left && (got.verdict != xdpPass || !slices.Equal(got.frame, frame)) {
			t.Errorf("%s: verdict %v, or the frame has changed", s.name, got.verdict)
		}
	}
}

// TestServiceProxyYields follows a frontend from its first packet to when it is taken: what the service
// proxy has begun by then stays its own.
func TestServiceProxyYields(t *testing.T) {
	w := newWorldBeside(t, bpf.DatapathServiceProxyModeSERVICE_PROXY_YIELDS)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			from := func(p packet, port uint16) packet {
				return p.with(func(p *packet) { p.from = netip.AddrPortFrom(p.from.Addr(), port) })
			}
			before, begun, later := from(f.tcp(portCluster, "A"), 50000), from(f.tcp(portCluster, "S"), 50001), from(f.tcp(portCluster, "S"), 50002)
			w.take(t, f)
			w.steps(t, []step{
				{"of a connection from before", before, true},
				{"one begins", begun, true},
				{"to another node", from(f.tcp(portNode2, "S"), 50003), true},
				{"a datagram", f.udp(portCluster), true},
			})
			if w.proxied(t, flowOf(f, before.from, before.to, 6)) || !w.proxied(t, flowOf(f, begun.from, begun.to, 6)) {
				t.Error("the program notes connections that begin, and no others")
			}
			// The agent writes those from before.
			put(t, w.Proxied, flowOf(f, before.from, before.to, 6), uint32(1))
			w.take(t, f, portCluster, portNode2)
			w.steps(t, []step{
				{"of a connection from before, once taken", before, true},
				{"of one that began before", from(f.tcp(portCluster, "A"), 50001), true},
				{"to another node, of one that began before", from(f.tcp(portNode2, "A"), 50003), true},
				{"its end", from(f.tcp(portCluster, "FA"), 50001), true},
				{"one begins, once taken", later, false},
				{"it goes on", from(f.tcp(portCluster, "A"), 50002), false},
				{"of one that nobody knows", from(f.tcp(portCluster, "A"), 50004), false},
				{"a datagram of before", f.udp(portCluster), true},
			})
		})
	}
}

// TestServiceProxyTakes has new connections be the service proxy's, while ours go on.
func TestServiceProxyTakes(t *testing.T) {
	w := newWorldBeside(t, bpf.DatapathServiceProxyModeSERVICE_PROXY_TAKES)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			from := func(p packet, port uint16) packet {
				return p.with(func(p *packet) { p.from = netip.AddrPortFrom(p.from.Addr(), port) })
			}
			w.take(t, f, portCluster)
			w.steps(t, []step{
				{"of one of ours", f.tcp(portCluster, "A"), false},
				{"of one of ours, to another node", f.tcp(portNode2, "A"), false},
				{"one begins", from(f.tcp(portCluster, "S"), 50001), true},
				{"it goes on", from(f.tcp(portCluster, "A"), 50001), true},
				{"one to another node begins", from(f.tcp(portNode2, "S"), 50001), true},
				{"it goes on, to another node", from(f.tcp(portNode2, "A"), 50001), true},
				{"a datagram", f.udp(portCluster), false},
			})
		})
	}
}

// TestServiceProxyHasTheRest has what no frontend is for pass to the stack, as it is of Services that
// are not moved yet: ports of a VIP that others share, and addresses of a pool or an aggregate.
func TestServiceProxyHasTheRest(t *testing.T) {
	for name, test := range map[string]struct {
		mode bpf.DatapathServiceProxyMode
		want verdict
	}{
		"none":   {bpf.DatapathServiceProxyModeSERVICE_PROXY_NONE, xdpDrop},
		"yields": {bpf.DatapathServiceProxyModeSERVICE_PROXY_YIELDS, xdpPass},
		"takes":  {bpf.DatapathServiceProxyModeSERVICE_PROXY_TAKES, xdpPass},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldBeside(t, test.mode)
			for _, f := range families {
				w.putPool(t, f)
				for name, frame := range withoutFrontend(f) {
					got := w.ingress(t, frame)
					if got.verdict != test.want || test.want == xdpPass && !slices.Equal(got.frame, frame) {
						t.Errorf("%s, %s: verdict %v, want %v, or the frame has changed", f.name, name, got.verdict, test.want)
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
		"a port without a frontend":  data.frame(),
		"a datagram to it":           datagram.frame(),
		"in a VLAN":                  tagged(data.frame(), 0x81000007),
		"an address of a pool":       to(ofPool).frame(),
		"in a VLAN, of a pool":       tagged(to(ofPool).frame(), 0x81000007),
		"an address of an aggregate": to(ofAggregate).frame(),
	}
}
