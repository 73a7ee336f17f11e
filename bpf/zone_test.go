// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// newZones returns a world with this node in zone 1 and node 2 in zone 3. The frontends of portCluster and
// portClusterEmpty have tables for three zones: this node's with its own rows, node 2's with rows of node 2,
// and zone 5, with chains.
func newZones(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	var self bpf.DatapathSelf
	if err := w.Settings.Lookup(uint32(0), &self); err != nil {
		t.Fatal(err)
	}
	self.Zone = 1
	put(t, w.Settings, uint32(0), self)
	put(t, w.Nodes, uint32(nodeID(2)), bpf.DatapathNode{Ipv4: ipv4(v4.node2), Ipv6: address(v6.node2), Zone: 3})
	slot := func(port uint16) uint32 { return uint32(port-portCluster) + 1 }
	for _, f := range families {
		for _, port := range []uint16{portCluster, portClusterEmpty} {
			zones := bpf.DatapathZones{Table: [8]uint32{1: slot(portCluster), 3: slot(portNode2), 5: slot(portChainAway)}}
			put(t, w.ZoneTables, f.frontendID(port), zones)
		}
	}
	return w
}

func TestZones(t *testing.T) {
	w := newZones(t)
	for _, f := range families {
		for _, fixture := range inZones(f) {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

var (
	otherZone = event(bpf.DatapathEventEVENT_LOOKUP_OTHER_ZONE)
	returned  = event(bpf.DatapathEventEVENT_LOOKUP_RETURNED)
)

func inZones(f family) []fixture {
	syn, ack := f.tcp(portCluster, "S"), f.tcp(portCluster, "A")
	udp, empty := f.udp(portCluster), f.tcp(portClusterEmpty, "A")
	sent := func(name string, in, out tunnel, counts tally) fixture {
		return fixture{name: name, in: in.frame(), verdict: xdpTX, out: toNode2(out), counts: counts}
	}
	on := func(t tunnel, zones uint8) tunnel { return t.with(func(t *tunnel) { t.zones = zones }) }
	// From zone 3, by the table of this node's zone: six zones further.
	asked := on(ack.arrived(v4, selfID), 6)
	fixtures := []fixture{
		{
			name: "SYN", in: syn.frame(), verdict: xdpPass, out: delivered(syn, f.pods[0]),
			counts: join(f.received(syn), f.opened(portCluster)),
		},
		{
			name: "UDP", in: udp.frame(), verdict: xdpPass, out: delivered(udp, f.pods[0]),
			counts: join(f.received(udp), f.opened(portCluster)),
		},
		{
			name: "unknown connection", in: ack.frame(), verdict: xdpTX,
			out: toNode2(on(ack.tunnelled(v4.node2, 2), 2)), counts: join(f.received(ack), otherZone),
		},
		sent("returned from the next zone, the zone after it has the same primary with a chain",
			on(ack.arrived(v4, selfID).with(func(t *tunnel) { t.ingress = selfID }), 2),
			on(ack.tunnelled(v4.node2, 2, selfID, 3, 4), 4), otherZone),
		sent("unknown in the last zone, returned to the primary of the ingress node's zone", asked, on(ack.arrived(v4, 2).onwards(v4.node2), 8), returned),
		sent("chain by rank is removed at the end", asked.with(func(t *tunnel) { t.flags = flagRanked }),
			on(ack.arrived(v4, 2).onwards(v4.node2), 8), returned),
		sent("remaining steps are kept along a chain", on(ack.arrived(v4, 3, 2, 4), 2),
			on(ack.arrived(v4, 3).onwards(v4.node2, 4), 2), event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)),
		{
			name: "unknown in all zones", in: on(ack.arrived(v4, selfID), 8).frame(), verdict: xdpPass,
			out: delivered(ack, f.pods[0]), counts: f.opened(portCluster),
		},
		sent("datagram lookup", on(withFlags(udp.arrived(v4, selfID), flagLookup), 6),
			on(withFlags(udp.arrived(v4, 2).onwards(v4.node2), flagLookup), 8), returned),
		{
			name: "datagram is not looked up", in: on(udp.arrived(v4, selfID), 6).frame(), verdict: xdpPass,
			out: delivered(udp, f.pods[0]), counts: f.opened(portCluster),
		},
		{
			name: "invalid number of zones", in: on(ack.arrived(v4, selfID), 9).frame(), verdict: xdpDrop,
			counts: dropped(bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED),
		},
		{
			name: "no endpoint here", in: empty.frame(), verdict: xdpTX,
			out: toNode2(on(empty.tunnelled(v4.node2, 2), 2)), counts: join(f.received(empty), otherZone),
		},
	}
	known := sent("known here, redirect to the ingress node", asked,
		withFlags(ack.arrived(v4, selfID).onwards(v4.node2), flagRedirect), nil)
	known.given = func(t *testing.T, w *world) { w.play(t, syn, answer(syn, f.pods[0], "SA"), ack) }
	return append(fixtures, known)
}

// This node is the ingress node of a flow that it holds by the table of another zone, unknown to its own
// zone's path.
func TestIngressNodeHoldsByAnotherZone(t *testing.T) {
	w := newZones(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.clearOverrides(t)
			syn, ack := f.tcp(portCluster, "S"), f.tcp(portCluster, "A")
			w.play(t, syn, answer(syn, f.pods[0], "SA"), ack)
			in := ack.arrived(v4, selfID).with(func(t *tunnel) { t.ingress, t.zones = selfID, 2 })
			if got := w.ingress(t, in.frame()); got.verdict != xdpPass {
				t.Errorf("verdict %v, want XDP_PASS", got.verdict)
			}
			if owner := w.override(t, ack); owner != selfID {
				t.Errorf("override to node %d, want the local node", owner)
			}
			w.unmark(t, ack)
		})
	}
}
