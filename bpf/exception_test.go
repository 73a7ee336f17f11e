// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// ago returns a tick seconds in the past.
func (w *world) ago(t testing.TB, seconds uint32) uint32 {
	t.Helper()
	return uint32(w.tick(t)) - seconds*w.ticks(t)
}

func (w *world) tick(t testing.TB) uint64 {
	t.Helper()
	w.renewLease(t)
	var now uint64
	if err := w.Heartbeat.Lookup(uint32(0), &now); err != nil {
		t.Fatal(err)
	}
	return now
}

const (
	rowMoved    = 1 << 62
	rowExcepted = 1 << 63
	rowMarked   = rowMoved | rowExcepted
)

func (p packet) rowIndex() uint32 {
	node, _ := flowHash(p)
	return uint32(p.to.Port()-portCluster+1)*4096 + node>>20
}

func (p packet) rowGroup() uint32 { return p.rowIndex() / uint32(bpf.DatapathShapeROW_GROUP) }

func (w *world) mark(t testing.TB, p packet, mark bpf.DatapathGroupMark) {
	t.Helper()
	put(t, w.GroupMarks, p.rowGroup(), mark)
	row := tables[p.to.Port()].row()
	if mark.Moved != 0 {
		row.Path |= rowMoved
	}
	if mark.Excepted != 0 {
		row.Path |= rowExcepted
	}
	put(t, w.Rows, p.rowIndex(), row)
}

func (w *world) isMarked(t testing.TB, p packet) bool {
	t.Helper()
	var row bpf.DatapathRow
	if err := w.Rows.Lookup(p.rowIndex(), &row); err != nil {
		t.Fatal(err)
	}
	return row.Path&rowMarked != 0
}

func (w *world) unmark(t testing.TB, p packet) {
	t.Helper()
	put(t, w.GroupMarks, p.rowGroup(), bpf.DatapathGroupMark{})
	put(t, w.Rows, p.rowIndex(), tables[p.to.Port()].row())
}

// except creates an exception for the packet's flow, last used seconds ago.
func (w *world) except(t testing.TB, p packet, node, seconds uint32) {
	t.Helper()
	about := rig.ExceptionAbout(p.rowIndex(), uint32(nodeID(uint16(node))), w.tick(t)-uint64(seconds)*uint64(w.ticks(t)))
	err := w.exceptions().Put(p.to, uint8(p.protocol), maps.All(map[netip.AddrPort]uint64{p.from: about}))
	if err != nil {
		t.Fatal(err)
	}
	w.mark(t, p, bpf.DatapathGroupMark{Excepted: w.ago(t, 0)})
}

const exceptionBuckets = 1024

func (w *world) exceptions() *rig.Exceptions {
	return &rig.Exceptions{Table: w.Exceptions, Filter: w.ExceptionFilter, Key: w.ExceptionKey}
}

// exception returns the node of the packet's flow, or zero.
func (w *world) exception(t testing.TB, p packet) uint32 {
	t.Helper()
	about, err := w.exceptions().Find(p.from, p.to, uint8(p.protocol))
	if err != nil {
		t.Fatal(err)
	}
	return rig.ExceptionNode(about) & 0xfff
}

const none = 0

type exceptionCase struct {
	fixture
	of            packet
	except, after uint32
	idle          uint32
}

func TestExceptions(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for kind, cases := range map[string][]exceptionCase{
			"ingress node": ingressNodeCases(f), "holder": holderCases(f), "notice": noticeCases(f),
		} {
			for _, c := range cases {
				t.Run(f.name+"/"+kind+"/"+c.name, func(t *testing.T) { w.checkException(t, c) })
			}
		}
	}
}

func (w *world) checkException(t *testing.T, c exceptionCase) {
	t.Helper()
	w.clearExceptions(t)
	given := c.given
	c.given = func(t *testing.T, w *world) {
		if given != nil {
			given(t, w)
		}
		if c.except != none {
			w.except(t, c.of, c.except, c.idle)
		}
		t.Cleanup(func() { w.unmark(t, c.of) })
	}
	w.check(t, c.fixture)
	if got := w.exception(t, c.of); got != c.after {
		t.Errorf("exception to node %d, want %d", got, c.after)
	}
	if c.after != none && !w.isMarked(t, c.of) {
		t.Error("the row is not marked")
	}
}

func (w *world) clearExceptions(t testing.TB) {
	t.Helper()
	if err := w.exceptions().Clear(); err != nil {
		t.Fatal(err)
	}
}

var (
	exceptionUsed    = event(bpf.DatapathEventEVENT_EXCEPTION_USED)
	exceptionLearned = event(bpf.DatapathEventEVENT_EXCEPTION_LEARNED)
)

func withFlags(t tunnel, flags uint8) tunnel {
	t.flags = flags
	return t
}

func toNode2(t tunnel) []byte { return t.sent(uplinkMAC, node2MAC) }
func toNode3(t tunnel) []byte { return t.sent(uplinkMAC, node3MAC) }

func ingressNodeCases(f family) []exceptionCase {
	ack, syn := f.tcp(portNode3, "A"), f.tcp(portNode3, "S")
	byRow := toNode3(ack.tunnelled(node3, 3))
	used := func(p packet) fixture {
		return fixture{
			in: p.frame(), verdict: xdpTX, out: toNode2(withFlags(p.tunnelled(v4.node2, 3), flagException|flagWalk)),
			counts: join(f.received(p), exceptionUsed),
		}
	}
	row := fixture{in: ack.frame(), verdict: xdpTX, out: byRow, counts: f.received(ack)}
	named := func(name string, fixture fixture) fixture { fixture.name = name; return fixture }
	return []exceptionCase{
		{fixture: named("used", used(ack)), of: ack, except: 2, after: 2},
		{fixture: named("used by a SYN", used(syn)), of: syn, except: 2, after: 2},
		{fixture: named("used after two hours", used(ack)), of: ack, except: 2, after: 2, idle: 7440},
		{fixture: named("too old", row), of: ack, except: 2, idle: 7503},
		{fixture: named("to a node that is gone", row), of: ack, except: 99},
		{fixture: named("to the row's primary", row), of: ack, except: 3},
		{fixture: named("none", row), of: ack},
	}
}

// holderCases are packets from nodes at a possible holder of the flow.
func holderCases(f family) []exceptionCase {
	syn, ack := f.tcp(portNode3, "S"), f.tcp(portNode3, "A")
	known := func(t *testing.T, w *world) { w.play(t, syn, answer(syn, f.pods[0], "SA"), ack) }
	halfOpen := func(t *testing.T, w *world) { w.play(t, syn) }
	offered := func(t *testing.T, w *world) { w.play(t, syn, answer(syn, f.pods[0], "SA")) }
	// The flows are created here, although the row has another owner.
	here := func(given func(*testing.T, *world)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			row := tables[portNode3]
			row.primary = selfID
			put(t, w.Rows, syn.rowIndex(), row.row())
			given(t, w)
			w.unmark(t, syn)
		}
	}
	in := func(chooser uint16, flags uint8) tunnel { return withFlags(ack.arrived(v4, chooser, 6), flags) }
	served := func(name string, given func(*testing.T, *world), in tunnel) exceptionCase {
		return exceptionCase{of: ack, fixture: fixture{
			name: name, given: here(given), in: in.frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]),
		}}
	}
	back := func(name string, in tunnel, out []byte) exceptionCase {
		return exceptionCase{of: ack, fixture: fixture{
			name: name, given: here(known), in: in.frame(), verdict: xdpTX, out: out,
		}}
	}
	own := served("its own packet comes back", known, in(3, 0).with(func(t *tunnel) { t.ingress = selfID }))
	own.counts, own.after = exceptionLearned, selfID
	held := withFlags(in(selfID, 0).onwards(v4.node2, 6), flagNotice)
	return []exceptionCase{
		back("found by a chain walk, notice to the ingress node", in(3, 0), toNode2(held)),
		back("the ingress node is not the sender", in(3, 0).with(func(t *tunnel) { t.ingress = 3 }),
			toNode3(withFlags(in(selfID, 0).onwards(node3, 6), flagNotice).with(func(t *tunnel) { t.ingress = 3 }))),
		served("by its row", known, in(selfID, 0)),
		served("by an exception", known, in(3, flagException|flagWalk)),
		served("for the last time", known, in(3, flagException|flagNotice|flagWalk)),
		served("half-open, and the packet proves it", offered, in(3, 0)),
		{of: ack, fixture: fixture{
			name: "half-open, back to the chooser", given: here(halfOpen), in: ack.arrived(v4, 3).frame(), verdict: xdpTX,
			out: toNode3(ack.arrived(v4, 3).onwards(node3)), counts: event(bpf.DatapathEventEVENT_SECOND_CHANCE_RETURNED),
		}},
		served("the ingress node is unknown", known, in(3, 0).with(func(t *tunnel) { t.ingress = 99 })),
		own,
	}
}

// noticeCases are notices, and packets misdirected by an exception.
func noticeCases(f family) []exceptionCase {
	ack, syn, udp := f.tcp(portNode3, "A"), f.tcp(portNode3, "S"), f.udp(portNode3)
	in := func(p packet, ingress, chooser uint16, flags uint8) tunnel {
		return withFlags(p.arrived(v4, chooser), flags).with(func(t *tunnel) { t.ingress = ingress })
	}
	sent := func(name string, p packet, in tunnel, out []byte, counts ...tally) exceptionCase {
		return exceptionCase{of: p, fixture: fixture{name: name, in: in.frame(), verdict: xdpTX, out: out, counts: join(counts...)}}
	}
	refused := func(name string, in tunnel) exceptionCase {
		return exceptionCase{of: ack, fixture: fixture{
			name: name, in: in.frame(), verdict: xdpDrop, counts: dropped(bpf.DatapathDropReasonDROP_TUNNEL_EXCEPTION),
		}}
	}
	excepted := func(c exceptionCase, before, after uint32) exceptionCase { c.except, c.after = before, after; return c }
	final := uint8(flagException | flagNotice | flagWalk)
	byRow := toNode3(withFlags(ack.tunnelled(node3, 3), flagWalk))
	away := f.tcp(portNode2, "A")
	asked := event(bpf.DatapathEventEVENT_SECOND_CHANCE)
	chained := f.udp(portChain)
	return []exceptionCase{
		excepted(sent("the holder's word is taken", ack, in(ack, selfID, 2, flagNotice),
			toNode2(withFlags(ack.tunnelled(v4.node2, 3), final)), exceptionLearned), none, 2),
		excepted(sent("it replaces another", ack, in(ack, selfID, 2, flagNotice),
			toNode2(withFlags(ack.tunnelled(v4.node2, 3), final)), exceptionLearned), 6, 2),
		excepted(sent("the row's primary needs none", away, in(away, selfID, 2, flagNotice),
			toNode2(withFlags(away.tunnelled(v4.node2, 2), final))), 6, none),
		refused("not by the holder", in(ack, selfID, 3, flagNotice)),
		refused("not to the ingress node", in(ack, 3, 2, flagNotice)),
		excepted(sent("given up", ack, in(ack, selfID, 0, flagNotice), byRow), 2, none),
		excepted(sent("another node cannot give it up", ack, in(ack, selfID, 0, flagNotice), byRow), 6, 6),
		sent("not known here any more", ack, in(ack, 2, 3, flagException|flagWalk),
			toNode2(withFlags(ack.arrived(v4, 0), flagNotice|flagWalk).onwards(v4.node2))),
		sent("a new connection is the primary's", syn, in(syn, 2, 3, flagException|flagWalk),
			toNode2(withFlags(syn.arrived(v4, 0), flagNotice|flagWalk).onwards(v4.node2))),
		sent("a datagram is asked for on a row that moved", chained,
			withFlags(chained.arrived(v4, selfID, 3), flagWalk),
			toNode3(withFlags(chained.arrived(v4, selfID), flagWalk).onwards(node3)), asked),
		{of: udp, fixture: fixture{
			name: "a datagram is not on others", in: udp.arrived(v4, selfID, 3).frame(), verdict: xdpPass,
			out: delivered(udp, f.pods[0]), counts: f.opened(portNode3),
		}},
	}
}

// Datagrams of a moved row are looked up at other nodes until the mark expires.
func TestMovedRow(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		udp := f.udp(portNode2)
		for name, c := range map[string]struct {
			ago    uint32
			flags  uint8
			marked bool
		}{
			"lately": {200, flagWalk, true}, "long ago": {241, 0, false},
		} {
			w.check(t, fixture{
				name: name, given: func(t *testing.T, w *world) { w.mark(t, udp, bpf.DatapathGroupMark{Moved: w.ago(t, c.ago)}) },
				in: udp.frame(), verdict: xdpTX, out: toNode2(withFlags(udp.tunnelled(v4.node2, 2), c.flags)), counts: f.received(udp),
			})
			if w.isMarked(t, udp) != c.marked {
				t.Errorf("%s, %s: marked %v, want %v", f.name, name, !c.marked, c.marked)
			}
			w.unmark(t, udp)
		}
	}
}

// A history replaces a chain by rank only, and a chain by rank is replaced only by a history.
func TestHistoryReplacesRanks(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		asked := event(bpf.DatapathEventEVENT_SECOND_CHANCE)
		with, without := f.tcp(portChain, "A"), f.tcp(portCluster, "A")
		for _, c := range []fixture{
			{
				name: "a history", in: withFlags(with.arrived(v4, 6, 8), flagRanked).frame(), verdict: xdpTX,
				out: toNode2(with.arrived(v4, 6).onwards(v4.node2, 3)), counts: asked,
			},
			{
				name: "none", in: withFlags(without.arrived(v4, 6, 3), flagRanked).frame(), verdict: xdpTX,
				out: toNode3(withFlags(without.arrived(v4, 6), flagRanked).onwards(node3)), counts: asked,
			},
			{
				name: "no guess", in: with.arrived(v4, 6, 3).frame(), verdict: xdpTX,
				out: toNode3(with.arrived(v4, 6).onwards(node3)), counts: asked,
			},
		} {
			t.Run(f.name+"/"+c.name, func(t *testing.T) { w.check(t, c) })
		}
	}
}
