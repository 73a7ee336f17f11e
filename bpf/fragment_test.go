// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

// part makes a packet a fragment with an offset in units of 8 bytes. Only the first has a transport header.
func part(offset uint16, more bool, id uint32) func(*packet) {
	return func(p *packet) {
		p.fragment, p.more, p.fragmentID = offset, more, uint16(id)
		if !p.is4() {
			p.extensions = append(p.extensions, fragmentHeader(offset, more, id))
		}
	}
}

func (w *world) ageFragments(t testing.TB, seconds uint32) {
	t.Helper()
	ticks := seconds * w.ticks(t)
	for _, m := range []*ebpf.Map{w.Fragments, w.OverflowFragments} {
		change[bpf.DatapathFragmentKey](t, m, func(f *bpf.DatapathFragment) { f.Seen -= ticks })
	}
}

func fragments(f family) []fixture {
	udp := f.udp(portCluster)
	first, later := udp.with(part(0, true, 7)), udp.with(part(100, false, 7))
	awayFirst := f.udp(portNode2).with(part(0, true, 7))
	awayLater := f.udp(portNode2).with(part(100, true, 7))
	served := func(name string, in packet, before ...packet) fixture {
		fixture := fixture{
			name: name, in: in.frame(), verdict: xdpPass, out: delivered(in, f.pods[0]), counts: f.received(in),
		}
		for _, p := range before {
			fixture.before = append(fixture.before, p.frame())
		}
		return fixture
	}
	early := func(name string, in packet, before ...packet) fixture {
		fixture := served(name, in, before...)
		fixture.verdict, fixture.out = xdpDrop, nil
		fixture.counts = dropped(bpf.DatapathDropReasonDROP_FIRST_FRAGMENT_MISSING)
		return fixture
	}
	opened := func(fixture fixture, port uint16) fixture {
		fixture.counts = join(fixture.counts, f.opened(port))
		return fixture
	}
	refuse := func(name string, reason bpf.DatapathDropReason, in packet) fixture {
		return fixture{name: name, in: in.frame(), verdict: xdpDrop, counts: dropped(reason)}
	}
	given := func(fixture fixture, change func(t *testing.T, w *world)) fixture {
		before := fixture.before
		fixture.before = nil
		fixture.given = func(t *testing.T, w *world) {
			for _, frame := range before {
				w.ingress(t, frame)
			}
			change(t, w)
		}
		return fixture
	}
	echo, _ := f.echo("ping")
	lost := early("flow unknown to all nodes", later, first)
	lost.counts = join(lost.counts, f.received(later))
	return []fixture{
		opened(served("first", first), portCluster),
		served("later", later, first),
		served("middle fragment", udp.with(part(50, true, 7)), first, later),
		served("fragment shorter than two ports", udp.with(part(100, false, 7)).with(func(p *packet) { p.payload = "x" }), first),
		given(served("later fragment uses the same endpoint", later, first), func(t *testing.T, w *world) { w.pointTo(t, f, 1) }),
		served("after a forged first fragment with another port", later, first, f.udp(portClusterTwin+1).with(part(0, true, 7))),
		given(served("29 s after the first", later, first), func(t *testing.T, w *world) { w.ageFragments(t, 28) }),
		given(early("31 s after the first", later, first), func(t *testing.T, w *world) { w.ageFragments(t, 31) }),
		given(lost, func(t *testing.T, w *world) {
			for _, m := range w.flowMaps() {
				if m != w.Fragments && m != w.OverflowFragments {
					clearMap(t, m)
				}
			}
			must(w.halfOpen().Clear())
		}),
		early("later fragment before the first", later),
		early("of another datagram", udp.with(part(100, false, 8)), first),
		early("of another client", later.with(func(p *packet) { p.from = f.to(1) }), first),
		{
			name: "first to another node", in: awayFirst.frame(), verdict: xdpTX,
			out: awayFirst.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), counts: f.received(awayFirst),
		},
		{
			name: "later to another node", before: [][]byte{awayFirst.frame()}, in: awayLater.frame(), verdict: xdpTX,
			out:    awayLater.tunnelled(v4.node2, 2).with(func(t *tunnel) { t.flow = &awayFirst }).sent(uplinkMAC, node2MAC),
			counts: f.received(awayLater),
		},
		{
			name: "later from a node", before: [][]byte{first.arrived(v4, selfID).frame()},
			in: later.arrived(v4, selfID).frame(), verdict: xdpPass, out: delivered(later, f.pods[0]),
		},
		refuse("first without a whole TCP header", bpf.DatapathDropReasonDROP_MALFORMED,
			f.tcp(portCluster, "A").with(part(0, true, 7)).with(func(p *packet) { p.shown = 12 })),
		refuse("of an echo request", bpf.DatapathDropReasonDROP_FRAGMENT, echo.with(part(0, true, 7))),
		early("later fragment of an echo request", echo.with(part(100, false, 7))),
	}
}

// overlaps are fragments that overwrite the TCP header of the first one.
func overlaps(f family) []fixture {
	if f.vip.Is6() {
		return nil
	}
	var fixtures []fixture
	for _, offset := range []uint16{1, 2} {
		in := f.tcp(portCluster, "A").with(part(offset, false, 7))
		fixtures = append(fixtures, fixture{
			name: "overlapping", in: in.frame(), verdict: xdpDrop, counts: dropped(bpf.DatapathDropReasonDROP_FRAGMENT),
		})
	}
	return fixtures
}

func fragmentReplies(f family) []replyFixture {
	udp := f.udp(portCluster)
	whole := answer(udp, f.pods[0], "")
	first, later := whole.with(part(0, true, 9)), whole.with(part(100, false, 9))
	fromVIP := func(p packet) []byte { p.from = f.to(portCluster); return p.frame() }
	after := func(t *testing.T, w *world) { w.egress(t, first.frame()) }
	return []replyFixture{
		{name: "first fragment of a reply", before: []packet{udp}, in: first, out: fromVIP(first)},
		{name: "later fragment of a reply", before: []packet{udp}, given: after, in: later, out: fromVIP(later)},
		{name: "fragment of another datagram", before: []packet{udp}, given: after, in: whole.with(part(100, false, 10))},
		{name: "fragment without its first", before: []packet{udp}, in: later},
	}
}
