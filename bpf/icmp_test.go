// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// icmpKind is an ICMP message by type and code; rest is the second word.
type icmpKind struct {
	name       string
	kind, code byte
	rest       uint32
}

func (f family) errorKinds() []icmpKind {
	if f.vip.Is4() {
		return []icmpKind{
			{"fragmentation needed", 3, 4, 1400}, {"port unreachable", 3, 3, 0}, {"time exceeded", 11, 0, 0}, {"parameter problem", 12, 0, 1 << 24},
		}
	}
	return []icmpKind{
		{"too big", 2, 0, 1400}, {"port unreachable", 1, 4, 0}, {"time exceeded", 3, 0, 0}, {"parameter problem", 4, 1, 40},
	}
}

func icmpProtocol(a netip.Addr) layers.IPProtocol {
	if a.Is4() {
		return layers.IPProtocolICMPv4
	}
	return layers.IPProtocolICMPv6
}

func icmp(from, to netip.Addr, kind icmpKind, data []byte) packet {
	message := binary.BigEndian.AppendUint32([]byte{kind.kind, kind.code, 0, 0}, kind.rest)
	message = append(message, data...)
	sum := uint32(0)
	if from.Is6() {
		// Pseudo-header of RFC 8200, section 8.1.
		for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), {0, 0, byte(len(message) >> 8), byte(len(message)), 0, 0, 0, 58}} {
			sum += wordSum(part)
		}
	}
	sum += wordSum(message)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	return packet{
		from: netip.AddrPortFrom(from, 0), to: netip.AddrPortFrom(to, 0),
		protocol: icmpProtocol(to), payload: string(message),
	}
}

func wordSum(b []byte) (sum uint32) {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func (f family) router() netip.Addr { return f.other }

// receivedAt returns the counters of an error about a port on the node selected by the router.
func (f family) receivedAt(port uint16, in packet) tally {
	in.to = f.to(port)
	return f.received(in)
}

// reported returns an error of the router that quotes shown bytes of a sent packet.
func (f family) reported(kind icmpKind, sent packet, shown int) packet {
	embedded := sent.ip()
	return icmp(f.router(), sent.from.Addr(), kind, embedded[:min(shown, len(embedded))])
}

func (f family) header() int {
	if f.vip.Is4() {
		return 20
	}
	return 40
}

func TestICMPErrors(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, fixture := range icmpErrors(f) {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
		}
	}
}

// vipSent is the VIP's packet to the client of p, and podSent the same before translation.
func vipSent(p packet) packet { return answer(p, p.to, "A") }

func podSent(p packet, pod netip.AddrPort) packet { return answer(p, pod, "A") }

func icmpErrors(f family) []fixture {
	pod := f.pods[0]
	syn, ack, udp := f.tcp(portCluster, "S"), f.tcp(portCluster, "A"), f.udp(portCluster)
	tooBig := f.errorKinds()[0]
	all := 1500
	delivered := func(name string, kind icmpKind, of packet, shown int, change func(*packet)) fixture {
		in := f.reported(kind, vipSent(of).with(change), shown)
		return fixture{
			name: name, before: [][]byte{of.with(func(p *packet) { p.flags = "S" }).frame(), of.frame()},
			in: in.frame(), verdict: xdpPass, out: f.reported(kind, podSent(of, pod).with(change), shown).frame(),
			counts: f.receivedAt(portCluster, in),
		}
	}
	same := func(*packet) {}
	var fixtures []fixture
	for _, kind := range f.errorKinds() {
		fixtures = append(fixtures, delivered(kind.name+" about TCP", kind, ack, f.header()+8, same))
	}
	fixtures = append(fixtures,
		delivered("all of a TCP packet is shown", tooBig, ack, all, same),
		delivered("up to the checksum of TCP", tooBig, ack, f.header()+18, same),
		delivered("UDP", tooBig, udp, f.header()+8, same),
		delivered("all of a UDP packet is shown", tooBig, udp, all, same),
		delivered("an odd number of bytes is shown", tooBig, udp, f.header()+11, same),
		delivered("UDP without a checksum", tooBig, udp, f.header()+8, func(p *packet) { p.zeroChecksum = true }),
	)
	drop := func(name string, reason bpf.DatapathDropReason, in packet) fixture {
		return fixture{name: name, before: [][]byte{syn.frame(), ack.frame()}, in: in.frame(), verdict: xdpDrop, counts: dropped(reason)}
	}
	about := func(change func(*packet)) packet { return f.reported(tooBig, vipSent(ack).with(change), all) }
	toVIP := func(p packet) packet { p.to = netip.AddrPortFrom(f.vip, 0); return p }
	unknown := f.reported(tooBig, vipSent(ack), f.header()+8)
	fixtures = append(fixtures,
		drop("about a port without a frontend", bpf.DatapathDropReasonDROP_NO_FRONTEND,
			about(func(p *packet) { p.from = f.to(9) })),
		drop("about a packet not sent by the VIP", bpf.DatapathDropReasonDROP_ICMP_EMBEDDED,
			icmp(f.router(), f.vip, tooBig, podSent(ack, pod).ip())),
		drop("about a protocol without ports", bpf.DatapathDropReasonDROP_ICMP_EMBEDDED,
			about(func(p *packet) { p.protocol = layers.IPProtocolGRE })),
		drop("embedded ports truncated", bpf.DatapathDropReasonDROP_MALFORMED, f.reported(tooBig, vipSent(ack), f.header()+3)),
		drop("embedded IP header truncated", bpf.DatapathDropReasonDROP_MALFORMED, f.reported(tooBig, vipSent(ack), f.header()-1)),
		drop("no embedded packet", bpf.DatapathDropReasonDROP_MALFORMED, f.reported(tooBig, vipSent(ack), 0)),
		drop("truncated ICMP header", bpf.DatapathDropReasonDROP_MALFORMED,
			toVIP(packet{from: f.client, protocol: icmpProtocol(f.vip), payload: "\x03\x04\x00"})),
		drop("unsupported ICMP type", bpf.DatapathDropReasonDROP_ICMP_TYPE, icmp(f.router(), f.vip, icmpKind{kind: 5}, nil)),
		fixture{
			name: "unknown connection", in: unknown.frame(), verdict: xdpDrop,
			counts: join(f.receivedAt(portCluster, unknown), dropped(bpf.DatapathDropReasonDROP_ICMP_NO_CONNECTION)),
		},
	)
	return append(fixtures, icmpErrorsElsewhere(f)...)
}

func icmpErrorsElsewhere(f family) []fixture {
	tooBig := f.errorKinds()[0]
	asked := event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)
	returned := event(bpf.DatapathEventEVENT_LOOKUP_RETURNED)
	of := func(port uint16) (in packet, flow *packet) {
		ack := f.tcp(port, "A")
		return f.reported(tooBig, vipSent(ack), f.header()+8), &ack
	}
	toNode := func(in packet, flow *packet, to netip.Addr, chooser uint16, chain ...uint16) tunnel {
		return in.tunnelled(to, chooser, chain...).with(func(t *tunnel) { t.flow = flow })
	}
	arrived := func(in packet, flow *packet, chooser uint16, chain ...uint16) []byte {
		return in.arrived(v4, chooser, chain...).with(func(t *tunnel) { t.flow = flow }).frame()
	}
	away, awayFlow := of(portNode2)
	chained, chainedFlow := of(portChain)
	syn := f.tcp(portChain, "S")
	return []fixture{
		{
			name: "row of another node", in: away.frame(), verdict: xdpTX,
			out:    toNode(away, awayFlow, v4.node2, 2).sent(uplinkMAC, node2MAC),
			counts: f.receivedAt(portNode2, away),
		},
		{
			name: "unknown flow is forwarded along the chain of the row", in: chained.frame(), verdict: xdpTX,
			out:    toNode(chained, chainedFlow, v4.node2, selfID, 3).sent(uplinkMAC, node2MAC),
			counts: join(f.receivedAt(portChain, chained), asked),
		},
		{
			name: "from a node, known", given: func(t *testing.T, w *world) { w.establish(t, syn, f.pods[0]) },
			in: arrived(chained, chainedFlow, 2, 3), verdict: xdpPass,
			out: f.reported(tooBig, podSent(syn, f.pods[0]), f.header()+8).frame(),
		},
		{
			name: "about an unvalidated flow is forwarded along the chain of the row", before: [][]byte{syn.frame()}, in: chained.frame(), verdict: xdpTX,
			out:    toNode(chained, chainedFlow, v4.node2, selfID, 3).sent(uplinkMAC, node2MAC),
			counts: join(f.receivedAt(portChain, chained), asked),
		},
		{
			name: "returned to the primary, unvalidated flow: delivered", before: [][]byte{syn.frame()},
			in: arrived(chained, chainedFlow, selfID), verdict: xdpPass,
			out: f.reported(tooBig, podSent(syn, f.pods[0]), f.header()+8).frame(),
		},
		{
			name: "from a node, unknown flow: returned to the primary",
			in:   arrived(chained, chainedFlow, 2), verdict: xdpTX,
			out:    toNode(chained, chainedFlow, v4.node2, 2).with(func(t *tunnel) { t.ingress = 2 }).sent(uplinkMAC, node2MAC),
			counts: returned,
		},
		{
			name: "returned to the primary, unknown flow: dropped",
			in:   arrived(chained, chainedFlow, selfID), verdict: xdpDrop,
			counts: dropped(bpf.DatapathDropReasonDROP_ICMP_NO_CONNECTION),
		},
	}
}

// An ICMP error creates no connection; otherwise spoofed ones could fill the tables.
func TestICMPErrorMakesNoConnection(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		w.forget(t)
		w.ingress(t, f.reported(f.errorKinds()[0], vipSent(f.tcp(portCluster, "A")), 1500).frame())
		for _, m := range w.flowMaps() {
			if key, err := m.NextKeyBytes(nil); err != nil {
				t.Fatal(err)
			} else if key != nil {
				t.Errorf("%s: map %v is not empty", f.name, m)
			}
		}
		if n, err := w.halfOpen().Count(); err != nil || n != 0 {
			t.Errorf("%s: %d half-open flows, error %v", f.name, n, err)
		}
	}
}

func icmpReplies(f family) []replyFixture {
	pod := f.pods[0]
	var fixtures []replyFixture
	sentTo := func(p packet, to netip.AddrPort) packet { p.to = to; return p }
	translated := func(name string, from netip.Addr, kind icmpKind, about packet, shown int) replyFixture {
		embedded := sentTo(about, pod).ip()
		shown = min(shown, len(embedded))
		return replyFixture{
			name: name, before: []packet{about},
			in:  icmp(from, f.client.Addr(), kind, embedded[:shown]),
			out: icmp(f.vip, f.client.Addr(), kind, about.ip()[:shown]).frame(),
		}
	}
	syn, udp := f.tcp(portCluster, "S"), f.udp(portCluster)
	for _, kind := range f.errorKinds() {
		fixtures = append(fixtures,
			translated(kind.name+" of the endpoint about UDP", pod.Addr(), kind, udp, f.header()+8),
			translated(kind.name+" of this node about TCP", f.self, kind, syn, 1500))
	}
	kind := f.errorKinds()[0]
	untouched := func(name string, in packet) replyFixture {
		return replyFixture{name: name, before: []packet{syn}, in: in}
	}
	untrusted := sentTo(syn, pod).with(func(p *packet) { p.from = netip.AddrPortFrom(f.other, 40000) })
	return append(fixtures,
		translated("eight bytes of TCP are shown", pod.Addr(), kind, syn, f.header()+8),
		translated("UDP without a checksum is shown", pod.Addr(), kind,
			udp.with(func(p *packet) { p.zeroChecksum = true }), 1500),
		untouched("error about a flow that is not ours", icmp(pod.Addr(), f.other, kind, untrusted.ip())),
		untouched("error that shows no ports", icmp(pod.Addr(), f.client.Addr(), kind, sentTo(syn, pod).ip()[:f.header()])),
		untouched("echo", icmp(pod.Addr(), f.client.Addr(), icmpKind{kind: 0}, []byte("ping"))),
	)
}
