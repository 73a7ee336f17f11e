// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// datagramsAskedFor is the share of datagrams of new flows for which other nodes are asked, where
// the row moved just now.
func (w *world) datagramsAskedFor(t *testing.T, p packet) float64 {
	t.Helper()
	const n = 100
	asked := 0
	for i := range n {
		p = p.fromPort(uint16(20000 + i))
		w.mark(t, p, bpf.DatapathRowMark{Moved: w.ago(t, 10)})
		if w.ingress(t, p.frame()).verdict == xdpTX {
			asked++
		}
		w.unmark(t, p)
	}
	return float64(asked) / n
}

// The primary asks other nodes for a flow where its row has a history. Ranks are none, unless
// this node has just booted and knows no better.
func TestChainIsAskedForItsHistory(t *testing.T) {
	w := newWorld(t)
	const never = 1 << 20
	for _, f := range families {
		ack, other := f.tcp(portChain, "A"), f.tcp(portChainAway, "A")
		asked := event(bpf.DatapathEventEVENT_SECOND_CHANCE)
		served := fixture{in: ack.frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]), counts: join(f.received(ack), f.opened(portChain))}
		to2 := func(t tunnel) fixture {
			return fixture{in: ack.frame(), verdict: xdpTX, out: toNode2(t), counts: join(f.received(ack), asked)}
		}
		for _, test := range []struct {
			name string
			row  table
			// moved is how many seconds ago the row did.
			moved uint32
			want  fixture
		}{
			{"former owners", table{selfID, [3]uint16{2, 3}, 2}, 10, to2(ack.tunnelled(v4.node2, selfID, 3))},
			{"former owners of long ago", table{selfID, [3]uint16{2, 3}, 2}, 7600, to2(ack.tunnelled(v4.node2, selfID, 3))},
			{"and ranks behind them", table{selfID, [3]uint16{2, 3}, 1}, 7600, to2(ack.tunnelled(v4.node2, selfID, 3))},
			{"ranks of a row that never moved", table{selfID, [3]uint16{2, 3}, 0}, never, served},
			{"ranks after a boot", table{selfID, [3]uint16{2, 3}, 0}, 7400, to2(withFlags(ack.tunnelled(v4.node2, selfID, 3), flagRanked))},
			{"ranks long after it", table{selfID, [3]uint16{2, 3}, 0}, 7600, served},
			{"nobody", table{primary: selfID}, 10, served},
			{"the row has another primary here: the ingress node, or this one, is behind", table{2, [3]uint16{selfID, 3}, 1}, never, fixture{
				in: ack.arrived(v4, selfID, 2, 7).frame(), verdict: xdpTX,
				out: toNode2(ack.arrived(v4, selfID).onwards(v4.node2, 7)), counts: asked,
			}},
			{"it has another newest former owner here", table{selfID, [3]uint16{3}, 1}, never, fixture{
				in: ack.arrived(v4, selfID, 2, 7).frame(), verdict: xdpTX,
				out: toNode2(ack.arrived(v4, selfID).onwards(v4.node2, 7)), counts: asked,
			}},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				put(t, w.Rows, ack.rowIndex(), test.row.row())
				mark := bpf.DatapathRowMark{}
				if test.moved != never {
					mark.Moved = w.ago(t, test.moved)
				}
				put(t, w.RowMarks, ack.rowIndex(), mark)
				defer w.unmark(t, ack)
				w.check(t, test.want)
				if err := w.RowMarks.Lookup(ack.rowIndex(), &mark); err != nil || test.moved > 7500 && mark.Moved != 0 {
					t.Errorf("the row moved at %d (%v): the clock will make that young again", mark.Moved, err)
				}
			})
		}
		w.unmark(t, other)
	}
}

// Beyond the limit of unknown flows only some are asked for, and what is not is dropped. The
// limit is that of the source, or of its VIP. Flows that are known do not feel it.
func TestSecondChanceLimit(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			from := func(network, port int) packet {
				return f.tcp(portChain, "A").with(func(p *packet) {
					client := p.from.Addr().AsSlice()
					// The last byte of a /24 or /64.
					client[map[int]int{4: 2, 16: 7}[len(client)]] = byte(network)
					address, _ := netip.AddrFromSlice(client)
					p.from = netip.AddrPortFrom(address, uint16(1024+port))
				})
			}
			known := from(1, 60000)
			w.establish(t, known, f.pods[0])
			// unknown lets so many packets of flows come back from the chain.
			next := 0
			unknown := func(network, n int) {
				for range n {
					next++
					back := from(network, next).arrived(v4, selfID).with(func(t *tunnel) { t.ingress = 3 })
					w.ingress(t, back.frame())
				}
			}
			askedFor := func(network int, age uint32) float64 {
				const n = 2000
				asked := 0
				for i := range n {
					p := from(network, 10000+i)
					put(t, w.RowMarks, p.rowIndex(), bpf.DatapathRowMark{Moved: w.ago(t, age)})
					switch got := w.ingress(t, p.frame()).verdict; got {
					case xdpTX:
						asked++
					case xdpDrop:
					default:
						t.Fatalf("verdict %v", got)
					}
					put(t, w.RowMarks, p.rowIndex(), bpf.DatapathRowMark{})
				}
				return float64(asked) / n
			}
			check := func(what string, network int, young, old float64) {
				t.Helper()
				for age, want := range map[uint32]float64{10: young, 8000: old} {
					if got := askedFor(network, age); got < want*0.3 || got > want*2 {
						t.Errorf("%s: %.3f of the packets to rows that moved %d s ago are asked for, want %.3f", what, got, age, want)
					}
				}
			}
			const limit = unknownPerVIP / tcpWeight
			unknown(1, limit/2-1)
			check("a source within the limit", 1, 1, 1)
			unknown(1, 1)
			check("one beyond it", 1, 1./6, 1./64)
			check("another source", 2, 1, 1)
			if got := w.ingress(t, known.frame()).verdict; got != xdpPass {
				t.Errorf("a known flow of the source: verdict %v", got)
			}
			unknown(2, limit/4)
			unknown(3, limit/4)
			check("another source of a VIP beyond its limit", 4, 1./6, 1./64)
			if got := w.datagramsAskedFor(t, f.udp(portChain)); got != 1 {
				t.Errorf("%.3f of the datagrams to rows that moved are asked for: UDP has a limit of its own", got)
			}
			change[uint32](t, w.Unknowns, func(u *bpf.DatapathUnknown) { u.Since -= w.ticks(t) })
			check("a second later", 1, 1, 1)
		})
	}
}
