// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/dchest/siphash"
	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

const (
	probeVNI  = 0x4d4c50
	probePort = 7482
)

// probeKeys are the current and the previous key of the cluster.
var probeKeys = bpf.DatapathProbeKeys{
	Key: [4][2]uint64{{0x0706050403020100, 0x0f0e0d0c0b0a0908}, {3, 4}}, Count: 2,
}

// probe is a probe of node 2 to this node, encoded from the description in types.h.
type probe struct {
	kind     uint32
	from, to uint16
	nonce    uint64
	key      [2]uint64
}

func (p probe) payload() string {
	b := make([]byte, 32)
	b[1] = 0x80
	binary.BigEndian.PutUint16(b[2:], 0x88b5)
	binary.BigEndian.PutUint32(b[4:], probeVNI<<8)
	binary.BigEndian.PutUint32(b[8:], p.kind)
	binary.BigEndian.PutUint16(b[12:], p.from)
	binary.BigEndian.PutUint16(b[14:], p.to)
	binary.LittleEndian.PutUint64(b[16:], p.nonce)
	var text [16]byte
	binary.LittleEndian.PutUint64(text[:], uint64(p.kind)|uint64(p.from)<<16|uint64(p.to)<<32)
	binary.LittleEndian.PutUint64(text[8:], p.nonce)
	binary.LittleEndian.PutUint64(b[24:], siphash.Hash(p.key[0], p.key[1], text[:]))
	return string(b)
}

func probes(f family) []fixture {
	good := probe{kind: 1, from: nodeID(2), to: nodeID(selfID), nonce: 0x1122334455667788, key: probeKeys.Key[0]}
	request := func(p probe, change ...func(*packet)) packet {
		in := packet{
			from: netip.AddrPortFrom(f.node2, probePort), to: netip.AddrPortFrom(f.self, geneveUDP),
			protocol: layers.IPProtocolUDP, payload: p.payload(),
		}
		for _, c := range change {
			c(&in)
		}
		return in
	}
	answered := func(name string, p probe, kind uint32) fixture {
		in, reply := request(p), p
		reply.kind = kind
		out := in
		out.from, out.to, out.payload, out.ttl, out.zeroChecksum = in.to, in.from, reply.payload(), 64, true
		return fixture{
			name: name, in: in.frame(), verdict: xdpTX, out: out.with(sentBack).frame(),
			counts: event(bpf.DatapathEventEVENT_PROBE_REPLY_SENT),
		}
	}
	agent := func(name string, ago time.Duration, kind uint32) fixture {
		fixture := answered(name, good, kind)
		fixture.given = func(t *testing.T, w *world) {
			w.beat(t, ago, 0)
		}
		return fixture
	}
	refused := func(name string, reason bpf.DatapathDropReason, in packet) fixture {
		return fixture{name: name, in: in.frame(), verdict: xdpDrop, counts: dropped(reason)}
	}
	with := func(change func(*probe)) packet {
		p := good
		change(&p)
		return request(p)
	}
	const wrong = bpf.DatapathDropReasonDROP_TUNNEL_PROBE
	plain, tags := answered("tagged", good, 2), []uint32{vlanTag}
	plain.in, plain.out = tagged(plain.in, tags...), tagged(plain.out, tags...)
	return []fixture{
		answered("newest key", good, 2),
		answered("previous key", probe{kind: 1, from: nodeID(2), to: nodeID(selfID), nonce: 7, key: probeKeys.Key[1]}, 2),
		agent("agent with a current heartbeat", time.Second, 2),
		agent("an agent that hangs", 5*time.Second, 3),
		agent("agent without a heartbeat", 0, 2),
		plain,
		refused("other key", wrong, with(func(p *probe) { p.key[0]++ })),
		refused("no key", wrong, with(func(p *probe) { p.key = [2]uint64{} })),
		refused("answer", wrong, with(func(p *probe) { p.kind = 2 })),
		refused("for another node", wrong, with(func(p *probe) { p.to = nodeID(3) })),
		refused("in another node's name", wrong, with(func(p *probe) { p.from = nodeID(3) })),
		refused("cut", wrong, request(good, func(p *packet) { p.payload = p.payload[:31] })),
		refused("from an untrusted host", bpf.DatapathDropReasonDROP_TUNNEL_SOURCE,
			request(good, func(p *packet) { p.from = netip.AddrPortFrom(f.other, probePort) })),
	}
}

// routerProbes are probes via a router to the Geneve port of a VIP.
func routerProbes(f family) []fixture {
	good := probe{kind: 1, from: nodeID(2), nonce: 0x1122334455667788, key: probeKeys.Key[0]}
	request := func(p probe, change ...func(*packet)) packet {
		in := packet{
			from: netip.AddrPortFrom(f.node2, probePort), to: f.to(geneveUDP),
			protocol: layers.IPProtocolUDP, payload: p.payload(),
		}
		for _, c := range change {
			c(&in)
		}
		return in
	}
	answered := func(name string, p probe, change ...func(*packet)) fixture {
		in, reply := request(p, change...), p
		reply.kind, reply.to = 2, nodeID(selfID)
		out := in
		out.from, out.to, out.ttl, out.zeroChecksum = in.to, in.from, 64, true
		out.payload = reply.payload() + in.payload[32:]
		return fixture{
			name: name, in: in.frame(), verdict: xdpTX, out: out.with(sentBack).frame(),
			counts: event(bpf.DatapathEventEVENT_PROBE_REPLY_SENT),
		}
	}
	refused := func(name string, reason bpf.DatapathDropReason, in packet) fixture {
		return fixture{name: name, in: in.frame(), verdict: xdpDrop, counts: dropped(reason)}
	}
	with := func(change func(*probe)) packet {
		p := good
		change(&p)
		return request(p)
	}
	own := good
	own.from = nodeID(selfID)
	plain, tags := answered("tagged", good), []uint32{vlanTag}
	plain.in, plain.out = tagged(plain.in, tags...), tagged(plain.out, tags...)
	// The response to a probe of this node is passed to the stack.
	delivered := answered("reply from this node", own, func(p *packet) { p.from = netip.AddrPortFrom(f.self, probePort) })
	reply := own
	reply.kind, reply.to = 2, nodeID(selfID)
	delivered.verdict = xdpPass
	delivered.out = packet{
		from: f.to(geneveUDP), to: netip.AddrPortFrom(f.self, probePort), protocol: layers.IPProtocolUDP,
		payload: reply.payload(), ttl: 64, zeroChecksum: true,
	}.frame()
	const wrong = bpf.DatapathDropReasonDROP_TUNNEL_PROBE
	return []fixture{
		answered("reply from another node", good),
		delivered,
		answered("long", good, func(p *packet) { p.payload += strings.Repeat("\x00", 1400) }),
		plain,
		refused("for one node", wrong, with(func(p *probe) { p.to = nodeID(selfID) })),
		refused("other key", wrong, with(func(p *probe) { p.key[0]++ })),
		refused("answer", wrong, with(func(p *probe) { p.kind = 2 })),
		refused("in another node's name", wrong, with(func(p *probe) { p.from = nodeID(3) })),
		refused("cut", bpf.DatapathDropReasonDROP_NO_FRONTEND, request(good, func(p *packet) { p.payload = p.payload[:31] })),
		refused("of another user of Geneve", bpf.DatapathDropReasonDROP_NO_FRONTEND, request(good, func(p *packet) {
			p.payload = p.payload[:6] + "\x7f" + p.payload[7:]
		})),
		refused("from an untrusted host", bpf.DatapathDropReasonDROP_TUNNEL_SOURCE,
			request(good, func(p *packet) { p.from = netip.AddrPortFrom(f.other, probePort) })),
	}
}

// A probe via a router is answered in this node's name.
func TestProbesThroughRouters(t *testing.T) {
	w := newWorld(t)
	put(t, w.ProbeSecrets, uint32(0), probeKeys)
	for _, f := range families {
		for _, fixture := range routerProbes(f) {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

// Only probes of nodes are answered by the program.
func TestProbes(t *testing.T) {
	w := newWorld(t)
	put(t, w.ProbeSecrets, uint32(0), probeKeys)
	for _, f := range families {
		for _, fixture := range probes(f) {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

func TestProbeWithoutKeys(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, fixture := range probes(f) {
			if fixture.name == "no key" {
				t.Run(f.name, func(t *testing.T) { w.check(t, fixture) })
			}
		}
	}
}

// No flow is looked up at a failed node, neither by an override nor along a chain.
func TestNodeDownIsSkipped(t *testing.T) {
	w := newWorld(t)
	up := bpf.DatapathNode{Ipv4: ipv4(v4.node2), Ipv6: address(v6.node2)}
	down := up
	down.Flags = uint32(bpf.DatapathNodeFlagNODE_DOWN)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			ack := f.tcp(portCluster, "A")
			w.forget(t)
			w.clearOverrides(t)
			w.pointTo(t, f, 0)
			t.Cleanup(func() {
				w.unmark(t, ack)
				put(t, w.Nodes, uint32(nodeID(2)), up)
			})
			w.except(t, ack, 2, 0)
			if got := w.ingress(t, ack.frame()); got.verdict != xdpTX {
				t.Fatalf("verdict %v, want XDP_TX to node 2", got.verdict)
			}
			put(t, w.Nodes, uint32(nodeID(2)), down)
			got := w.ingress(t, ack.frame())
			if got.verdict != xdpPass {
				t.Fatalf("verdict %v, want XDP_PASS to the local pod", got.verdict)
			}
			checkFrame(t, got.frame, delivered(ack, f.pods[0]))
			if node := w.override(t, ack); node != none {
				t.Errorf("the override still selects node %d", node)
			}
		})
	}
	// The chain of these rows is node 2, then node 3, which is reachable by IPv6 only.
	ack := v6.tcp(portChain, "A")
	w.forget(t)
	put(t, w.Nodes, uint32(nodeID(2)), down)
	if got := w.ingress(t, ack.frame()); got.verdict != xdpTX || string(got.frame[38:54]) != string(node3.AsSlice()) {
		t.Errorf("verdict %v, outer destination %x, want XDP_TX to node 3", got.verdict, got.frame[38:54])
	}
}
