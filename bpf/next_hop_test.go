// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

var hopMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x66}

func (w *world) prepareHop(t testing.TB, id uint32, ifindex int, source, destination net.HardwareAddr) {
	t.Helper()
	w.changeNode(t, id, func(node *bpf.DatapathNode) {
		node.Ifindex, node.Mtu, node.Vlan = uint32(ifindex), 1500, 0
		node.Source, node.Destination = [6]byte(source), [6]byte(destination)
	})
}

func (w *world) changeNode(t testing.TB, id uint32, change func(*bpf.DatapathNode)) {
	t.Helper()
	var node bpf.DatapathNode
	if err := w.Nodes.Lookup(uint32(nodeID(uint16(id))), &node); err != nil {
		t.Fatal(err)
	}
	change(&node)
	put(t, w.Nodes, uint32(nodeID(uint16(id))), node)
}

func (w *world) renewLease(t testing.TB) {
	t.Helper()
	if _, err := w.RenewLease.Run(&ebpf.RunOptions{}); err != nil {
		t.Fatal(err)
	}
}

// With prepared next hops on the fast path, every packet ends as on the full path.
func TestIngressPrepared(t *testing.T) {
	w := newWorld(t)
	w.prepareHop(t, 2, w.uplink, uplinkMAC, node2MAC)
	w.prepareHop(t, 3, w.uplink, uplinkMAC, node3MAC)
	w.prepareHop(t, 7, w.second, secondMAC, neighborMAC)
	for _, f := range families {
		for kind, fixtures := range map[string][]fixture{
			"not ours":      notOurs(f),
			"VIP":           vipRules(f),
			"stage 1":       stage1(w, f),
			"stage 2":       stage2(f),
			"second chance": lookupForwarded(f),
		} {
			for _, fixture := range fixtures {
				t.Run(f.name+"/"+kind+"/"+fixture.name, func(t *testing.T) {
					w.renewLease(t)
					w.check(t, fixture)
				})
			}
		}
	}
}

func TestPreparedHop(t *testing.T) {
	w := newWorld(t)
	beat := func(seconds uint64) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.renewLease(t)
			var last uint64
			if err := w.HopLease.Lookup(uint32(0), &last); err != nil {
				t.Fatal(err)
			}
			put(t, w.HopLease, uint32(0), last-seconds*uint64(w.ticks(t)))
		}
	}
	with := func(change func(*bpf.DatapathNode)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.renewLease(t)
			w.changeNode(t, 2, change)
			t.Cleanup(func() { w.prepareHop(t, 2, w.uplink, uplinkMAC, hopMAC) })
		}
	}
	w.prepareHop(t, 2, w.uplink, uplinkMAC, hopMAC)
	w.prepareHop(t, 5, w.uplink, uplinkMAC, hopMAC)
	for _, f := range families {
		syn, lost := f.tcp(portNode2, "S"), f.tcp(portNoRoute, "S")
		out := syn.tunnelled(v4.node2, 2)
		tagged := out.sent(uplinkMAC, hopMAC)
		tagged = append(append(append([]byte{}, tagged[:12]...), 0x81, 0, 0x60, 7), tagged[12:]...)
		big := f.udp(portNode2).with(func(p *packet) { p.payload = strings.Repeat("x", 1400-overhead()-f.header()-8) })
		tooBig := big.with(func(p *packet) { p.payload += "x" })
		small := func(node *bpf.DatapathNode) { node.Mtu = 1400 }
		for _, fixture := range []fixture{
			{name: "used", given: beat(0), in: syn.frame(), verdict: xdpTX, out: out.sent(uplinkMAC, hopMAC), counts: f.received(syn)},
			{
				name: "used without a kernel route", given: beat(29), in: lost.frame(), verdict: xdpTX,
				out: lost.tunnelled(node5, 5).sent(uplinkMAC, hopMAC), counts: f.received(lost),
			},
			{name: "expired lease", given: beat(31), in: syn.frame(), verdict: xdpTX, out: out.sent(uplinkMAC, node2MAC), counts: f.received(syn)},
			{
				name: "lease never renewed", given: func(t *testing.T, w *world) { put(t, w.HopLease, uint32(0), uint64(0)) },
				in: syn.frame(), verdict: xdpTX, out: out.sent(uplinkMAC, node2MAC), counts: f.received(syn),
			},
			{
				name: "through another uplink", given: with(func(node *bpf.DatapathNode) { node.Ifindex = uint32(w.second) }),
				in: syn.frame(), verdict: xdpRedirect, out: out.sent(uplinkMAC, hopMAC), counts: f.received(syn),
			},
			{
				name: "through an interface without XDP redirect", given: with(func(node *bpf.DatapathNode) { node.Ifindex = uint32(w.third) }),
				in: syn.frame(), verdict: xdpTX, out: out.sent(uplinkMAC, node2MAC), counts: f.received(syn),
			},
			{
				name: "on a VLAN", given: with(func(node *bpf.DatapathNode) { node.Vlan = 3<<13 | 7 }),
				in: syn.frame(), verdict: xdpTX, out: tagged, counts: f.received(syn),
			},
			{
				name: "maximum length", given: with(small), in: big.frame(), verdict: xdpTX,
				out: big.tunnelled(v4.node2, 2).sent(uplinkMAC, hopMAC), counts: f.received(big),
			},
			{
				name: "one byte too long", given: with(small), in: tooBig.frame(), verdict: xdpTX,
				out:    f.told(f.tooBig(1400-uint32(overhead())), tooBig).frame(),
				counts: join(f.received(tooBig), dropped(bpf.DatapathDropReasonDROP_PACKET_TOO_BIG), event(bpf.DatapathEventEVENT_TOO_BIG_SENT)),
			},
		} {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

// Frames in several buffers are returned unchanged, and leave by another uplink through the kernel.
func TestSplitFrames(t *testing.T) {
	w := newWorld(t)
	ip(t, "link set uplink mtu 9000\nlink set fabric mtu 9000\nlink set second mtu 9000\nlink set fabric2 mtu 9000")
	for _, f := range families {
		long := func(port uint16) packet {
			return f.udp(port).with(func(p *packet) { p.payload = strings.Repeat("long", 2000) })
		}
		back, other, here := long(portNode2), long(portSecondUplink), long(portCluster)
		for _, fixture := range []fixture{
			{
				name: "through the incoming uplink", in: back.frame(), verdict: xdpTX,
				out: back.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), counts: f.received(back),
			},
			{
				name: "through another uplink", in: other.frame(), verdict: xdpPass,
				out: other.tunnelled(node7, 7).sent(routerMAC, uplinkMAC), note: handoverNote(w.second),
				counts: join(f.received(other), event(bpf.DatapathEventEVENT_PASSED_TO_KERNEL)),
			},
			{
				name: "to an endpoint", in: here.frame(), verdict: xdpPass,
				out: delivered(here, f.pods[0]), counts: join(f.received(here), f.opened(portCluster)),
			},
		} {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

// Without its bit in the Bloom filter an address is no VIP, regardless of the maps.
func TestFilterIsFirst(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, p := range []packet{f.tcp(portCluster, "S"), f.udp(portNode2), f.tcp(9, "S")} {
			index, _ := filterPlace(f.vip)
			put(t, w.VipFilter, index, uint64(0))
			if got := w.ingress(t, p.frame()); got.verdict != xdpPass {
				t.Errorf("%s port %d: verdict %v without the flag, want XDP_PASS", f.name, p.to.Port(), got.verdict)
			}
			w.setFilter(t, f.vip)
			if got := w.ingress(t, p.frame()); got.verdict == xdpPass && bytes.Equal(got.frame, p.frame()) {
				t.Errorf("%s port %d: XDP_PASS with the flag", f.name, p.to.Port())
			}
		}
	}
}

// Without the bit of its part an address is no VIP and in no pool, but its frontends, which are looked up
// first, are found.
func TestPartsComeSecond(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		_, _, unassigned, _ := f.pool()
		index, _ := filterPlace(f.vip)
		var parts uint64
		if err := w.VipParts.Lookup(index, &parts); err != nil {
			t.Fatal(err)
		}
		to := func(p *packet) { p.to = netip.AddrPortFrom(unassigned, 9) }
		for _, test := range []struct {
			name    string
			packet  packet
			without verdict
		}{
			{"port of a VIP", f.udp(portNode2), xdpTX},
			{"unused port of a VIP", f.tcp(9, "S"), xdpPass},
			{"address of a pool", f.tcp(9, "S").with(to), xdpPass},
		} {
			put(t, w.VipParts, index, uint64(0))
			if got := w.ingress(t, test.packet.frame()); got.verdict != test.without {
				t.Errorf("%s, %s: verdict %v without the flag, want %v",
					f.name, test.name, got.verdict, test.without)
			}
			put(t, w.VipParts, index, parts)
			if got := w.ingress(t, test.packet.frame()); got.verdict == xdpPass {
				t.Errorf("%s, %s: XDP_PASS with the flag", f.name, test.name)
			}
		}
	}
}
