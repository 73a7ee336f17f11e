// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

// datagramsAskedFor is the fraction of new UDP flows of a just moved row that are looked up at other nodes.
func (w *world) datagramsAskedFor(t *testing.T, p packet) float64 {
	t.Helper()
	const n = 100
	asked := 0
	for i := range n {
		p = p.fromPort(uint16(20000 + i))
		w.mark(t, p, bpf.DatapathRowGroup{Moved: w.ago(t, 10)})
		if w.ingress(t, p.frame()).verdict == xdpTX {
			asked++
		}
		w.unmark(t, p)
	}
	return float64(asked) / n
}

// The primary looks up flows at other nodes if the row has a history. Ranks do not count, unless this node
// has just booted.
func TestChainLookupWithHistory(t *testing.T) {
	w := newWorld(t)
	const never = 1 << 20
	for _, f := range families {
		ack, other := f.tcp(portChain, "A"), f.tcp(portChainAway, "A")
		asked := event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)
		served := fixture{in: ack.frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]), counts: join(f.received(ack), f.opened(portChain))}
		to2 := func(t tunnel) fixture {
			return fixture{in: ack.frame(), verdict: xdpTX, out: toNode2(t), counts: join(f.received(ack), asked)}
		}
		for _, test := range []struct {
			name  string
			row   table
			moved uint32
			want  fixture
		}{
			{"previous owners", table{selfID, [3]uint16{2, 3}, 2}, 10, to2(ack.tunnelled(v4.node2, selfID, 3))},
			{"previous owners from long ago", table{selfID, [3]uint16{2, 3}, 2}, 7600, to2(ack.tunnelled(v4.node2, selfID, 3))},
			{"previous owners from long ago, followed by ranks", table{selfID, [3]uint16{2, 3}, 1}, 7600, to2(ack.tunnelled(v4.node2, selfID, 3))},
			{"ranks of a row that never moved", table{selfID, [3]uint16{2, 3}, 0}, never, served},
			{"ranks after a reboot", table{selfID, [3]uint16{2, 3}, 0}, 7400, to2(withFlags(ack.tunnelled(v4.node2, selfID, 3), flagRanked))},
			{"ranks long after the move", table{selfID, [3]uint16{2, 3}, 0}, 7600, served},
			{"nobody", table{primary: selfID}, 10, served},
			{"different primary on this node", table{2, [3]uint16{selfID, 3}, 1}, never, fixture{
				in: ack.arrived(v4, selfID, 2, 7).frame(), verdict: xdpTX,
				out: toNode2(ack.arrived(v4, selfID).onwards(v4.node2, 7)), counts: asked,
			}},
			{"different newest previous owner on this node", table{selfID, [3]uint16{3}, 1}, never, fixture{
				in: ack.arrived(v4, selfID, 2, 7).frame(), verdict: xdpTX,
				out: toNode2(ack.arrived(v4, selfID).onwards(v4.node2, 7)), counts: asked,
			}},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				put(t, w.Rows, ack.rowIndex(), test.row.row())
				mark := bpf.DatapathRowGroup{}
				if test.moved != never {
					mark.Moved = w.ago(t, test.moved)
				}
				put(t, w.RowGroups, ack.rowGroup(), mark)
				defer w.unmark(t, ack)
				w.check(t, test.want)
				if err := w.RowGroups.Lookup(ack.rowGroup(), &mark); err != nil || test.moved > 7500 && mark.Moved != 0 {
					t.Errorf("Moved = %d (%v): the timestamp will wrap around and appear recent", mark.Moved, err)
				}
			})
		}
		w.unmark(t, other)
	}
}

// networked returns a mid-connection packet whose source is in the given network, for which lookups are limited.
func networked(f family, network, port int) packet {
	return f.tcp(portChain, "A").with(func(p *packet) {
		client := p.from.Addr().AsSlice()
		client[map[int]int{4: 2, 16: 7}[len(client)]] = byte(network)
		address, _ := netip.AddrFromSlice(client)
		p.from = netip.AddrPortFrom(address, uint16(1024+port))
	})
}

// returns sends a packet that returned unknown from all nodes.
func (w *world) returns(t *testing.T, p packet) {
	t.Helper()
	w.ingress(t, p.arrived(v4, selfID).with(func(t *tunnel) { t.ingress = 3 }).frame())
}

// asks reports whether a flow is looked up at another node after its row moved; otherwise the packet is
// dropped.
func (w *world) asks(t *testing.T, p packet, moved uint32) bool {
	t.Helper()
	put(t, w.RowGroups, p.rowGroup(), bpf.DatapathRowGroup{Moved: w.ago(t, moved)})
	defer put(t, w.RowGroups, p.rowGroup(), bpf.DatapathRowGroup{})
	got := w.ingress(t, p.frame()).verdict
	if got != xdpTX && got != xdpDrop {
		t.Fatalf("unexpected verdict %v", got)
	}
	return got == xdpTX
}

// Beyond the limit of unknown flows, per source or VIP, only some new flows are looked up at other nodes, and
// the rest is dropped. Known flows are not affected.
func TestLookupForwardedLimit(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			known := networked(f, 1, 60000)
			w.establish(t, known, f.pods[0])
			next := 0
			unknown := func(network, n int) {
				for range n {
					next++
					w.returns(t, networked(f, network, next))
				}
			}
			seen := 10000
			askedFor := func(network int, age uint32) float64 {
				const n = 2000
				asked := 0
				for range n {
					seen++
					if w.asks(t, networked(f, network, seen), age) {
						asked++
					}
				}
				return float64(asked) / n
			}
			check := func(what string, network int, young, old float64) {
				t.Helper()
				for age, want := range map[uint32]float64{10: young, 8000: old} {
					if got := askedFor(network, age); got < want*0.3 || got > want*2 {
						t.Errorf("%s: lookup rate %.3f for rows that moved %d s ago, want %.3f", what, got, age, want)
					}
				}
			}
			const limit = unknownPerVIP / tcpWeight
			unknown(1, limit/2-1)
			check("source within the limit", 1, 1, 1)
			unknown(1, 1)
			check("source above the limit", 1, 1./6, 1./64)
			check("another source", 2, 1, 1)
			if got := w.ingress(t, known.frame()).verdict; got != xdpPass {
				t.Errorf("known flow of the source: verdict %v, want XDP_PASS", got)
			}
			unknown(2, limit/4)
			unknown(3, limit/4)
			check("another source of a VIP above its limit", 4, 1./6, 1./64)
			if got := w.datagramsAskedFor(t, f.udp(portChain)); got != 1 {
				t.Errorf("lookup rate %.3f for datagrams to rows that moved: UDP has a separate limit", got)
			}
			change[uint32](t, w.MissRates, func(u *bpf.DatapathMissRate) { u.Since -= w.ticks(t) })
			check("a second later", 1, 1, 1)
		})
	}
}

// A spoofed SYN does not direct packets of a connection to its pod that another node may hold, even beyond
// the limit: they are dropped.
func TestUnvalidatedFlowBeyondLimit(t *testing.T) {
	const flows = 100
	w := newWorld(t)
	for _, f := range families {
		w.forget(t)
		w.pointTo(t, f, 0)
		asked := 0
		for i := range flows {
			w.reachLimit(t, firstPackets)
			p := networked(f, 1, i)
			w.play(t, p.with(func(p *packet) { p.flags = "S" }))
			if w.asks(t, p, 8000) {
				asked++
			}
		}
		if asked > flows/8 {
			t.Errorf("%s: other nodes were queried about %d of %d flows", f.name, asked, flows)
		}
	}
}

const (
	firstPackets = iota
	repeats
)

// reachLimit exhausts a limit of all VIPs and sources for this second.
func (w *world) reachLimit(t *testing.T, class uint32) {
	t.Helper()
	slots, now := w.MissRates.MaxEntries()/2, w.ago(t, 0)
	keys, values := make([]uint32, slots), make([]bpf.DatapathMissRate, slots)
	for i := range keys {
		keys[i], values[i] = class*slots+uint32(i), bpf.DatapathMissRate{Since: now, Count: unknownPerVIP}
	}
	if _, err := w.MissRates.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
}

// Beyond the limit, a repeated packet is looked up, but only once if no node knows its flow. Repeats have a
// separate limit.
func TestRepeatedPacketsAreLookedUp(t *testing.T) {
	const flows, limit = 100, unknownPerVIP / tcpWeight
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			// asked returns the number of flows of a group that are looked up above the limits.
			asked := func(group int, limits ...uint32) (n int) {
				for i := range flows {
					// In a new second the limit would be reset.
					if i%20 == 0 {
						for _, class := range append(limits, firstPackets) {
							w.reachLimit(t, class)
						}
					}
					if w.asks(t, networked(f, 1, 10000*group+i), 8000) {
						n++
					}
				}
				return n
			}
			few := func(n int) bool { return n < flows/8 }
			returnAll := func(group, n int) {
				for i := range n {
					w.returns(t, networked(f, 1, 10000*group+i))
				}
				w.wipe(t)
			}
			if n := asked(1); !few(n) {
				t.Errorf("other nodes were queried about %d of %d first packets", n, flows)
			}
			for range 2 {
				if n := asked(1); n != flows {
					t.Errorf("other nodes were queried about %d of %d flows with a repeated packet before any reply", n, flows)
				}
			}
			returnAll(1, limit/2-1)
			if n := asked(1); n != flows-(limit/2-1) {
				t.Errorf("other nodes were queried about %d of %d flows; %d are unknown to all nodes", n, flows, limit/2-1)
			}
			asked(2)
			if n := asked(2); n != flows {
				t.Errorf("below the limit of repeats, other nodes were queried about %d of %d flows", n, flows)
			}
			w.returns(t, networked(f, 1, 20000))
			w.wipe(t)
			if n := asked(2, repeats); !few(n) {
				t.Errorf("above the limit of repeats, other nodes were queried about %d of %d flows", n, flows)
			}
			change[uint32](t, w.MissRates, func(u *bpf.DatapathMissRate) { u.Since -= w.ticks(t) })
			if n := asked(2); n != flows-1 {
				t.Errorf("one second later, other nodes were queried about %d of %d flows; one is unknown to all nodes", n, flows)
			}
			w.ageUnknownFlows(t, 31)
			if n := asked(2); !few(n) {
				t.Errorf("other nodes were queried about %d of %d expired flows", n, flows)
			}
		})
	}
}

func (w *world) ageUnknownFlows(t *testing.T, seconds uint32) {
	t.Helper()
	m, ticks := w.FlowMisses, seconds*w.ticks(t)
	keys, values := make([]uint32, m.MaxEntries()), make([]bpf.DatapathFlowMissBucket, m.MaxEntries())
	var cursor ebpf.MapBatchCursor
	n, err := m.BatchLookup(&cursor, keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	for i := range values[:n] {
		for slot := range values[i].Slot {
			values[i].Slot[slot].Since -= ticks
		}
	}
	if _, err := m.BatchUpdate(keys[:n], values[:n], nil); err != nil {
		t.Fatal(err)
	}
}
