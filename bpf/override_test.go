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
	if err := w.HopLease.Lookup(uint32(0), &now); err != nil {
		t.Fatal(err)
	}
	return now
}

const (
	rowMoved      = 1 << 62
	rowOverridden = 1 << 63
	rowMarked     = rowMoved | rowOverridden
)

func (p packet) rowIndex() uint32 {
	node, _ := flowHash(p)
	return uint32(p.to.Port()-portCluster+1)*4096 + node>>20
}

func (p packet) rowGroup() uint32 { return p.rowIndex() / uint32(bpf.DatapathShapeROW_GROUP) }

func (w *world) mark(t testing.TB, p packet, mark bpf.DatapathRowGroup) {
	t.Helper()
	put(t, w.RowGroups, p.rowGroup(), mark)
	row := tables[p.to.Port()].row()
	if mark.Moved != 0 {
		row.Path |= rowMoved
	}
	if mark.Overridden != 0 {
		row.Path |= rowOverridden
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
	put(t, w.RowGroups, p.rowGroup(), bpf.DatapathRowGroup{})
	put(t, w.Rows, p.rowIndex(), tables[p.to.Port()].row())
}

// except creates an override for the packet's flow, last used seconds ago.
func (w *world) except(t testing.TB, p packet, node, seconds uint32) {
	t.Helper()
	about := rig.OverrideAbout(p.rowIndex(), uint32(nodeID(uint16(node))), w.tick(t)-uint64(seconds)*uint64(w.ticks(t)))
	err := w.overrides().Put(p.to, uint8(p.protocol), maps.All(map[netip.AddrPort]uint64{p.from: about}))
	if err != nil {
		t.Fatal(err)
	}
	w.mark(t, p, bpf.DatapathRowGroup{Overridden: w.ago(t, 0)})
}

const overrideBuckets = 1024

func (w *world) overrides() *rig.Overrides {
	return &rig.Overrides{Table: w.Overrides, Filter: w.OverrideFilter, Key: w.FingerprintKey}
}

// override returns the node of the packet's flow, or zero.
func (w *world) override(t testing.TB, p packet) uint32 {
	t.Helper()
	about, err := w.overrides().Find(p.from, p.to, uint8(p.protocol))
	if err != nil {
		t.Fatal(err)
	}
	return rig.OverrideNode(about) & 0xfff
}

const none = 0

type overrideCase struct {
	fixture
	of            packet
	except, after uint32
	idle          uint32
}

func TestOverrides(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for kind, cases := range map[string][]overrideCase{
			"ingress node": ingressNodeCases(f), "owner": ownerCases(f), "redirect": redirectCases(f),
		} {
			for _, c := range cases {
				t.Run(f.name+"/"+kind+"/"+c.name, func(t *testing.T) { w.checkOverride(t, c) })
			}
		}
	}
}

func (w *world) checkOverride(t *testing.T, c overrideCase) {
	t.Helper()
	w.clearOverrides(t)
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
	if got := w.override(t, c.of); got != c.after {
		t.Errorf("override to node %d, want %d", got, c.after)
	}
	if c.after != none && !w.isMarked(t, c.of) {
		t.Error("the row is not marked")
	}
}

func (w *world) clearOverrides(t testing.TB) {
	t.Helper()
	if err := w.overrides().Clear(); err != nil {
		t.Fatal(err)
	}
}

var (
	overrideUsed    = event(bpf.DatapathEventEVENT_OVERRIDE_USED)
	overrideLearned = event(bpf.DatapathEventEVENT_OVERRIDE_ADDED)
)

func withFlags(t tunnel, flags uint8) tunnel {
	t.flags = flags
	return t
}

func toNode2(t tunnel) []byte { return t.sent(uplinkMAC, node2MAC) }
func toNode3(t tunnel) []byte { return t.sent(uplinkMAC, node3MAC) }

func ingressNodeCases(f family) []overrideCase {
	ack, syn := f.tcp(portNode3, "A"), f.tcp(portNode3, "S")
	byRow := toNode3(ack.tunnelled(node3, 3))
	used := func(p packet) fixture {
		return fixture{
			in: p.frame(), verdict: xdpTX, out: toNode2(withFlags(p.tunnelled(v4.node2, 3), flagOverride|flagLookup)),
			counts: join(f.received(p), overrideUsed),
		}
	}
	row := fixture{in: ack.frame(), verdict: xdpTX, out: byRow, counts: f.received(ack)}
	named := func(name string, fixture fixture) fixture { fixture.name = name; return fixture }
	return []overrideCase{
		{fixture: named("used", used(ack)), of: ack, except: 2, after: 2},
		{fixture: named("override used by a SYN", used(syn)), of: syn, except: 2, after: 2},
		{fixture: named("override used after two hours", used(ack)), of: ack, except: 2, after: 2, idle: 7440},
		{fixture: named("too old", row), of: ack, except: 2, idle: 7503},
		{fixture: named("override to a removed node", row), of: ack, except: 99},
		{fixture: named("to the primary of the row", row), of: ack, except: 3},
		{fixture: named("none", row), of: ack},
	}
}

// ownerCases are packets from nodes at a possible owner of the flow.
func ownerCases(f family) []overrideCase {
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
	served := func(name string, given func(*testing.T, *world), in tunnel) overrideCase {
		return overrideCase{of: ack, fixture: fixture{
			name: name, given: here(given), in: in.frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]),
		}}
	}
	back := func(name string, in tunnel, out []byte) overrideCase {
		return overrideCase{of: ack, fixture: fixture{
			name: name, given: here(known), in: in.frame(), verdict: xdpTX, out: out,
		}}
	}
	own := served("own packet returned", known, in(3, 0).with(func(t *tunnel) { t.ingress = selfID }))
	own.counts, own.after = overrideLearned, selfID
	held := withFlags(in(selfID, 0).onwards(v4.node2, 6), flagRedirect)
	return []overrideCase{
		back("found by a chain walk, redirect to the ingress node", in(3, 0), toNode2(held)),
		back("the ingress node is not the sender", in(3, 0).with(func(t *tunnel) { t.ingress = 3 }),
			toNode3(withFlags(in(selfID, 0).onwards(node3, 6), flagRedirect).with(func(t *tunnel) { t.ingress = 3 }))),
		served("found by its row", known, in(selfID, 0)),
		served("by an override", known, in(3, flagOverride|flagLookup)),
		served("last possible use", known, in(3, flagOverride|flagRedirect|flagLookup)),
		served("half-open flow validated by the packet", offered, in(3, 0)),
		{of: ack, fixture: fixture{
			name: "half-open, returned to the chooser", given: here(halfOpen), in: ack.arrived(v4, 3).frame(), verdict: xdpTX,
			out: toNode3(ack.arrived(v4, 3).onwards(node3)), counts: event(bpf.DatapathEventEVENT_LOOKUP_RETURNED),
		}},
		served("unknown ingress node", known, in(3, 0).with(func(t *tunnel) { t.ingress = 99 })),
		own,
	}
}

// redirectCases are redirects, and packets misdirected by an override.
func redirectCases(f family) []overrideCase {
	ack, syn, udp := f.tcp(portNode3, "A"), f.tcp(portNode3, "S"), f.udp(portNode3)
	in := func(p packet, ingress, chooser uint16, flags uint8) tunnel {
		return withFlags(p.arrived(v4, chooser), flags).with(func(t *tunnel) { t.ingress = ingress })
	}
	sent := func(name string, p packet, in tunnel, out []byte, counts ...tally) overrideCase {
		return overrideCase{of: p, fixture: fixture{name: name, in: in.frame(), verdict: xdpTX, out: out, counts: join(counts...)}}
	}
	refused := func(name string, in tunnel) overrideCase {
		return overrideCase{of: ack, fixture: fixture{
			name: name, in: in.frame(), verdict: xdpDrop, counts: dropped(bpf.DatapathDropReasonDROP_TUNNEL_REDIRECT),
		}}
	}
	overridden := func(c overrideCase, before, after uint32) overrideCase { c.except, c.after = before, after; return c }
	final := uint8(flagOverride | flagRedirect | flagLookup)
	byRow := toNode3(withFlags(ack.tunnelled(node3, 3), flagLookup))
	away := f.tcp(portNode2, "A")
	asked := event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)
	chained := f.udp(portChain)
	return []overrideCase{
		overridden(sent("redirect from the owner is accepted", ack, in(ack, selfID, 2, flagRedirect),
			toNode2(withFlags(ack.tunnelled(v4.node2, 3), final)), overrideLearned), none, 2),
		overridden(sent("redirect replaces an override", ack, in(ack, selfID, 2, flagRedirect),
			toNode2(withFlags(ack.tunnelled(v4.node2, 3), final)), overrideLearned), 6, 2),
		overridden(sent("the primary of the row needs no override", away, in(away, selfID, 2, flagRedirect),
			toNode2(withFlags(away.tunnelled(v4.node2, 2), final))), 6, none),
		refused("not by the owner", in(ack, selfID, 3, flagRedirect)),
		refused("not to the ingress node", in(ack, 3, 2, flagRedirect)),
		overridden(sent("given up", ack, in(ack, selfID, 0, flagRedirect), byRow), 2, none),
		overridden(sent("another node cannot remove the override", ack, in(ack, selfID, 0, flagRedirect), byRow), 6, 6),
		sent("flow no longer known here", ack, in(ack, 2, 3, flagOverride|flagLookup),
			toNode2(withFlags(ack.arrived(v4, 0), flagRedirect|flagLookup).onwards(v4.node2))),
		sent("new connection belongs to the primary", syn, in(syn, 2, 3, flagOverride|flagLookup),
			toNode2(withFlags(syn.arrived(v4, 0), flagRedirect|flagLookup).onwards(v4.node2))),
		sent("datagram to a moved row is looked up", chained,
			withFlags(chained.arrived(v4, selfID, 3), flagLookup),
			toNode3(withFlags(chained.arrived(v4, selfID), flagLookup).onwards(node3)), asked),
		{of: udp, fixture: fixture{
			name: "a datagram is not looked up", in: udp.arrived(v4, selfID, 3).frame(), verdict: xdpPass,
			out: delivered(udp, f.pods[0]), counts: f.opened(portNode3),
		}},
	}
}

// Datagrams of a moved row are looked up at other nodes until the flag expires.
func TestMovedRow(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		udp := f.udp(portNode2)
		for name, c := range map[string]struct {
			ago    uint32
			flags  uint8
			marked bool
		}{
			"lately": {200, flagLookup, true}, "long ago": {241, 0, false},
		} {
			w.check(t, fixture{
				name: name, given: func(t *testing.T, w *world) { w.mark(t, udp, bpf.DatapathRowGroup{Moved: w.ago(t, c.ago)}) },
				in: udp.frame(), verdict: xdpTX, out: toNode2(withFlags(udp.tunnelled(v4.node2, 2), c.flags)), counts: f.received(udp),
			})
			if w.isMarked(t, udp) != c.marked {
				t.Errorf("%s, %s: isMarked = %v, want %v", f.name, name, !c.marked, c.marked)
			}
			w.unmark(t, udp)
		}
	}
}

// A history replaces a chain by rank only, and a chain by rank is replaced only by a history.
func TestHistoryReplacesRanks(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		asked := event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)
		with, without := f.tcp(portChain, "A"), f.tcp(portCluster, "A")
		for _, c := range []fixture{
			{
				name: "history", in: withFlags(with.arrived(v4, 6, 8), flagRanked).frame(), verdict: xdpTX,
				out: toNode2(with.arrived(v4, 6).onwards(v4.node2, 3)), counts: asked,
			},
			{
				name: "none", in: withFlags(without.arrived(v4, 6, 3), flagRanked).frame(), verdict: xdpTX,
				out: toNode3(withFlags(without.arrived(v4, 6), flagRanked).onwards(node3)), counts: asked,
			},
			{
				name: "without a rank", in: with.arrived(v4, 6, 3).frame(), verdict: xdpTX,
				out: toNode3(with.arrived(v4, 6).onwards(node3)), counts: asked,
			},
		} {
			t.Run(f.name+"/"+c.name, func(t *testing.T) { w.check(t, c) })
		}
	}
}
