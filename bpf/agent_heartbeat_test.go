// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"
	"time"

	"github.com/millrace-lb/millrace/bpf"
)

// beat sets the age of the agent's beats; zero means no beat.
func (w *world) beat(t testing.TB, last, returned time.Duration) {
	t.Helper()
	at := func(ago time.Duration) uint64 {
		if ago == 0 {
			return 0
		}
		return monotonic(t) - uint64(ago)
	}
	put(t, w.AgentHeartbeat, uint32(0), bpf.DatapathAgentHeartbeats{Beat: at(last), Returned: at(returned)})
}

// A node with a silent agent selects no endpoint for new flows while another node of the row can.
func TestAgentSilent(t *testing.T) {
	w := newWorld(t)
	defer w.beat(t, 0, 0)
	const silent, down = 5 * time.Second, 9
	put(t, w.Nodes, uint32(nodeID(down)), bpf.DatapathNode{Ipv4: ipv4(v4.node2), Flags: uint32(bpf.DatapathNodeFlagNODE_DOWN)})
	handed := event(bpf.DatapathEventEVENT_AGENT_SILENT)
	for _, f := range families {
		pod := f.pods[0]
		syn, ack, udp := f.tcp(portCluster, "S"), f.tcp(portCluster, "A"), f.udp(portCluster)
		late, lateACK := f.tcp(portClusterEmpty, "S"), f.tcp(portClusterEmpty, "A")
		// last is the packet for the second node. It is not looked up at further nodes, except that new
		// flows without a local endpoint are sent to the row's owner.
		last := func(in tunnel, flags uint8) tunnel {
			return withFlags(in, flags).with(func(t *tunnel) { t.chooser, t.zones = 2, 8 })
		}
		to2 := func(name string, in packet, flags uint8) fixture {
			return fixture{
				name: name, in: in.frame(), verdict: xdpTX, out: toNode2(last(in.tunnelled(v4.node2, 2), flags)),
				counts: join(f.received(in), handed),
			}
		}
		here := func(name string, in packet, counts ...tally) fixture {
			return fixture{name: name, in: in.frame(), verdict: xdpPass, out: delivered(in, pod), counts: join(append(counts, f.received(in))...)}
		}
		from3 := func(in packet) tunnel {
			return in.arrived(v4, selfID).with(func(t *tunnel) { t.ingress = 3 })
		}
		opened := f.opened(portCluster)
		known := here("established connection is kept", ack)
		known.given = func(t *testing.T, w *world) {
			w.beat(t, 0, 0)
			w.establish(t, syn, pod)
			w.beat(t, silent, 0)
		}
		local := to2("a Local frontend", syn, flagRanked)
		local.given = func(t *testing.T, w *world) { w.sharedLocal(t, f, portCluster, true) }
		byRank, moved := table{selfID, [3]uint16{2, 3}, 0}, table{selfID, [3]uint16{3, 2}, 1}
		for _, test := range []struct {
			row            table
			last, returned time.Duration
			fixture
		}{
			{byRank, time.Second, 0, here("agent with a current heartbeat", syn, opened)},
			{byRank, 0, 0, here("agent without a heartbeat", syn, opened)},
			{byRank, silent, 0, to2("a SYN", syn, flagRanked)},
			{byRank, silent, 0, to2("a datagram", udp, flagRanked)},
			{byRank, silent, 0, to2("packet of an unknown connection", ack, flagRanked)},
			{byRank, silent, 0, known},
			{byRank, silent, 0, local},
			{moved, silent, 0, to2("previous primary without an endpoint", syn, flagRanked)},
			{table{selfID, [3]uint16{2, down}, 1}, silent, 0, to2("no other node is up", syn, flagRanked)},
			{table{selfID, [3]uint16{down, 2}, 0}, silent, 0, to2("a down node is skipped", syn, flagRanked)},
			{table{2, [3]uint16{selfID, 3}, 1}, silent, 0, fixture{
				name: "from a node whose row differs", in: from3(syn).frame(), verdict: xdpTX,
				out: toNode2(last(from3(syn).onwards(v4.node2), flagRanked)), counts: handed,
			}},
			{table{selfID, [3]uint16{down}, 0}, silent, 0, here("no other node remains", syn, opened)},
			{byRank, silent, 0, fixture{
				name: "forwarded by another node", in: last(from3(syn), flagRanked).with(func(t *tunnel) { t.chooser = selfID }).frame(),
				verdict: xdpPass, out: delivered(syn, pod), counts: opened,
			}},
			{byRank, time.Second, 10 * time.Second, here("SYN after the return", syn, opened)},
			{byRank, time.Second, 10 * time.Second, to2("unknown connection after the return", ack, flagRanked)},
			{byRank, time.Second, 70 * time.Second, here("an unknown connection later", ack, opened)},
			{table{2, [3]uint16{3}, 0}, time.Second, 0, fixture{
				name: "forwarded to a node without an endpoint: sent to its owner of the row",
				in:   last(from3(late), flagRanked).with(func(t *tunnel) { t.chooser = selfID }).frame(), verdict: xdpTX,
				out: toNode2(last(from3(late).onwards(v4.node2), 0)), counts: event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED),
			}},
			{table{2, [3]uint16{3}, 1}, time.Second, 0, fixture{
				name: "further packets of the flow",
				in:   last(from3(lateACK), flagRanked).with(func(t *tunnel) { t.chooser = selfID }).frame(), verdict: xdpTX,
				out: toNode2(last(from3(lateACK).onwards(v4.node2), 0)), counts: event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED),
			}},
			{table{2, [3]uint16{3}, 0}, time.Second, 0, fixture{
				name: "not packets returned by the owner of the row",
				in:   last(from3(lateACK), 0).with(func(t *tunnel) { t.chooser = selfID }).frame(), verdict: xdpDrop,
				counts: dropped(bpf.DatapathDropReasonDROP_NO_ENDPOINT),
			}},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				for _, p := range []packet{syn, udp, late} {
					put(t, w.Rows, p.rowIndex(), test.row.row())
				}
				w.beat(t, test.last, test.returned)
				w.check(t, test.fixture)
				// A handed-on flow needs the chain when its override is lost.
				if isAsked := w.rowGroup(t, syn).Moved != 0; isAsked != (test.name == "a SYN") && test.row == byRank && test.fixture.name != local.name {
					t.Errorf("chain lookup = %v", isAsked)
				}
				put(t, w.RowGroups, syn.rowGroup(), bpf.DatapathRowGroup{})
			})
		}
		t.Run(f.name+"/zones", func(t *testing.T) {
			zones := bpf.DatapathZones{Table: [8]uint32{1}}
			put(t, w.ZoneTables, f.frontendID(portCluster), zones)
			defer put(t, w.ZoneTables, f.frontendID(portCluster), bpf.DatapathZones{})
			put(t, w.Rows, syn.rowIndex(), byRank.row())
			w.beat(t, silent, 0)
			w.check(t, here("SYN to a frontend with zones", syn, opened))
		})
		for _, p := range []packet{syn, udp, late} {
			put(t, w.Rows, p.rowIndex(), tables[p.to.Port()].row())
		}
	}
}

// The limit of unknown flows does not apply to packets forwarded for a silent agent, and the receiving node
// does not count them.
func TestAgentSilentBeyondLimit(t *testing.T) {
	w := newWorld(t)
	defer w.beat(t, 0, 0)
	const flows = 100
	for _, f := range families {
		w.forget(t)
		w.pointTo(t, f, 0)
		w.beat(t, 5*time.Second, 0)
		for i := range flows {
			w.reachLimit(t, firstPackets)
			w.reachLimit(t, repeats)
			if got := w.ingress(t, networked(f, 1, i).frame()).verdict; got != xdpTX {
				t.Fatalf("%s: flow %d: verdict %v, want XDP_TX", f.name, i, got)
			}
		}
		w.forgetUnknowns(t)
		w.beat(t, time.Second, 0)
		for i := range flows {
			handed := networked(f, 1, i).arrived(v4, selfID)
			w.ingress(t, handed.with(func(t *tunnel) { t.ingress, t.zones, t.flags = 3, 8, flagRanked }).frame())
		}
		var slot uint32
		var unknown bpf.DatapathMissRate
		for entries := w.MissRates.Iterate(); entries.Next(&slot, &unknown); {
			if unknown.Count != 0 {
				t.Errorf("%s: slot %d: count %d, want 0", f.name, slot, unknown.Count)
			}
		}
	}
}
