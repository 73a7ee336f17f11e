// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

func TestIngress(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for kind, fixtures := range map[string][]fixture{
			"not ours":      notOurs(f),
			"VIP":           vipRules(f),
			"stage 1":       stage1(w, f),
			"stage 2":       stage2(f),
			"second chance": lookupForwarded(f),
			"conflict":      conflicts(f),
			"headers":       headers(f),
			"VLAN":          vlans(f),
			"answer":        answers(f),
			"pool":          unassigned(f),
			"martian":       martians(f),
			"fragment":      append(fragments(f), overlaps(f)...),
		} {
			for _, fixture := range fixtures {
				t.Run(f.name+"/"+kind+"/"+fixture.name, func(t *testing.T) { w.check(t, fixture) })
			}
		}
	}
}

// hashedLikeCluster collides with the hash of the IPv6 VIP's frontend at portCluster.
var hashedLikeCluster = netip.MustParseAddrPort("[2001:db8:cafe:0:68d1:a30a:b97f:8372]:443")

// notOurs are packets passed to the stack unchanged.
func notOurs(f family) []fixture {
	elsewhere := netip.AddrPortFrom(f.other, portCluster)
	self := netip.AddrPortFrom(f.self, 22)
	pass := func(name string, in []byte) fixture { return fixture{name: name, in: in, verdict: xdpPass} }
	toOther := f.tcp(portCluster, "S").with(func(p *packet) { p.to = elsewhere })
	// For IPv6 its hash equals that of the VIP's frontend.
	sameHash := f.tcp(portCluster, "S").with(func(p *packet) { p.to = hashedLikeCluster })
	if f.vip.Is4() {
		sameHash = toOther
	}
	return []fixture{
		pass("address that is not a VIP", toOther.frame()),
		pass("address and port with the hash of a frontend", sameHash.frame()),
		pass("this node", f.tcp(portCluster, "S").with(func(p *packet) { p.to = self }).frame()),
		pass("ICMP to this node", packet{from: f.client, to: self, protocol: layers.IPProtocolICMPv4, payload: "echo"}.frame()),
		pass("UDP to the Geneve port of another host",
			f.udp(portCluster).with(func(p *packet) { p.to = netip.AddrPortFrom(f.other, 6081) }).frame()),
		pass("frame for another station",
			f.tcp(portCluster, "S").with(func(p *packet) { p.destination = otherMAC }).frame()),
		pass("VLAN tag", tagged(toOther.frame(), 0x81000007)),
		pass("truncated VLAN tag", tagged(f.tcp(portCluster, "S").frame(), 0x81000007)[:17]),
		pass("ARP in a VLAN", tagged(append(append(append([]byte{}, uplinkMAC...), routerMAC...), "\x08\x06 who has?"...), 0x81000007)),
		pass("ARP", append(append(append([]byte{}, uplinkMAC...), routerMAC...), "\x08\x06 who has?"...)),
		pass("Ethernet header only", f.tcp(portCluster, "S").frame()[:14]),
		pass("truncated IP header", f.tcp(portCluster, "S").frame()[:14+19]),
		pass("truncated TCP header to another host", toOther.frame()[:60]),
		pass("unknown EtherType", append(append(append([]byte{}, uplinkMAC...), routerMAC...), "\x88\xb5 experiment"...)),
	}
}

func vipRules(f family) []fixture {
	drop := func(name string, reason bpf.DatapathDropReason, in []byte) fixture {
		return fixture{name: name, in: in, verdict: xdpDrop, counts: dropped(reason)}
	}
	syn := f.tcp(portCluster, "S")
	whole := syn.frame()
	wrongICMP := layers.IPProtocolICMPv6
	if f.vip.Is6() {
		wrongICMP = layers.IPProtocolICMPv4
	}
	fixtures := []fixture{
		drop("unused TCP port", bpf.DatapathDropReasonDROP_NO_FRONTEND, f.tcp(9, "S").frame()),
		drop("unused UDP port", bpf.DatapathDropReasonDROP_NO_FRONTEND, f.udp(9).frame()),
		drop("Geneve port", bpf.DatapathDropReasonDROP_NO_FRONTEND, f.udp(6081).frame()),
		drop("ICMP of the other IP version", bpf.DatapathDropReasonDROP_VIP_PROTOCOL, syn.with(func(p *packet) { p.protocol = wrongICMP }).frame()),
		drop("GRE", bpf.DatapathDropReasonDROP_VIP_PROTOCOL, syn.with(func(p *packet) { p.protocol = layers.IPProtocolGRE }).frame()),
		drop("unused SCTP port", bpf.DatapathDropReasonDROP_NO_FRONTEND, syn.with(func(p *packet) { p.protocol = layers.IPProtocolSCTP }).frame()),
		drop("truncated TCP header", bpf.DatapathDropReasonDROP_MALFORMED, whole[:len(whole)-len(syn.payload)-1]),
		drop("truncated payload", bpf.DatapathDropReasonDROP_MALFORMED, whole[:len(whole)-1]),
		drop("truncated UDP header", bpf.DatapathDropReasonDROP_MALFORMED,
			f.udp(portCluster).with(func(p *packet) { p.payload = "" }).frame()[:len(f.udp(portCluster).frame())-6]),
	}
	if f.vip.Is4() {
		short := f.tcp(portCluster, "S").frame()
		short[17] = 30
		ihl := f.tcp(portCluster, "S").frame()
		ihl[14] = 0x44
		return append(fixtures,
			drop("total length within the TCP header", bpf.DatapathDropReasonDROP_MALFORMED, short),
			drop("header length below 20", bpf.DatapathDropReasonDROP_MALFORMED, ihl),
		)
	}
	return fixtures
}

func stage1(w *world, f family) []fixture {
	away := func(name string, p packet, verdict verdict, out, note []byte, more ...tally) fixture {
		return fixture{
			name: name, in: p.frame(), verdict: verdict, out: out, note: note,
			counts: join(append(more, f.received(p))...),
		}
	}
	lost := func(name string, p packet, reason bpf.DatapathDropReason) fixture {
		return fixture{name: name, in: p.frame(), verdict: xdpDrop, counts: join(f.received(p), dropped(reason))}
	}
	onIPv6 := func(fixture fixture) fixture {
		fixture.given = func(t *testing.T, w *world) {
			w.putSelf(t, netip.Addr{}, v6.self)
			t.Cleanup(func() { w.putSelf(t, v4.self, v6.self) })
		}
		return fixture
	}
	onIPv4 := func(fixture fixture) fixture {
		fixture.given = func(t *testing.T, w *world) {
			w.putSelf(t, v4.self, netip.Addr{})
			t.Cleanup(func() { w.putSelf(t, v4.self, v6.self) })
		}
		return fixture
	}
	toldNotToTransmit := func(fixture fixture) fixture {
		fixture.given = noTransmit
		return fixture
	}
	bonded := func(fixture fixture) fixture {
		fixture.given = func(t *testing.T, w *world) {
			var before bpf.DatapathUplink
			if err := w.Uplinks.Lookup(uint32(w.uplink), &before); err != nil {
				t.Fatal(err)
			}
			put(t, w.Uplinks, uint32(w.uplink), bpf.DatapathUplink{Master: uint32(w.second)})
			t.Cleanup(func() { put(t, w.Uplinks, uint32(w.uplink), before) })
		}
		return fixture
	}
	handed := event(bpf.DatapathEventEVENT_PASSED_TO_KERNEL)
	syn, ack, udp := f.tcp(portNode2, "S"), f.tcp(portNode2, "A"), f.udp(portNode2)
	marked := syn.with(func(p *packet) { p.tos = 0xb8 | 1 })
	unresolved, third := f.tcp(portUnresolved, "S"), f.tcp(portThirdInterface, "S")
	big := f.udp(portNode2).with(func(p *packet) { p.payload = strings.Repeat("x", 1500-overhead()-8-40) })
	if f.vip.Is4() {
		big.payload += strings.Repeat("x", 20)
	}
	tooBig := big.with(func(p *packet) { p.payload += "x" })
	chained := f.tcp(portChainAway, "A")
	return []fixture{
		away("SYN", syn, xdpTX, syn.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), nil),
		away("ACK", ack, xdpTX, ack.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), nil),
		away("UDP", udp, xdpTX, udp.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), nil),
		away("chain of the row", chained, xdpTX, chained.tunnelled(v4.node2, 2, selfID, 3, 4).sent(uplinkMAC, node2MAC), nil),
		away("DSCP and ECN are copied to the outer header", marked, xdpTX, marked.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), nil),
		away("IPv6-only node", f.tcp(portNode3, "S"), xdpTX,
			f.tcp(portNode3, "S").tunnelled(node3, 3).sent(uplinkMAC, node3MAC), nil),
		onIPv6(away("local node is IPv6-only", syn, xdpTX, syn.tunnelled(v6.node2, 2).sent(uplinkMAC, node2MAC), nil)),
		away("through another uplink", f.tcp(portSecondUplink, "S"), xdpRedirect,
			f.tcp(portSecondUplink, "S").tunnelled(node7, 7).sent(secondMAC, neighborMAC), nil),
		bonded(away("through the incoming bond", f.tcp(portSecondUplink, "S"), xdpTX,
			f.tcp(portSecondUplink, "S").tunnelled(node7, 7).sent(secondMAC, neighborMAC), nil)),
		away("through an interface that is not an uplink", third, xdpPass,
			third.tunnelled(node8, 8).sent(routerMAC, uplinkMAC), handoverNote(w.third), handed),
		away("unresolved neighbour", unresolved, xdpPass,
			unresolved.tunnelled(node6, 6).sent(routerMAC, uplinkMAC), handoverNote(w.uplink), handed),
		toldNotToTransmit(away("driver without XDP_TX", syn, xdpPass,
			syn.tunnelled(v4.node2, 2).sent(routerMAC, uplinkMAC), handoverNote(w.uplink), handed)),
		away("maximum length", big, xdpTX, big.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), nil),
		away("one byte too long", tooBig, xdpTX, f.told(f.tooBig(1500-uint32(overhead())), tooBig).frame(), nil,
			dropped(bpf.DatapathDropReasonDROP_PACKET_TOO_BIG), event(bpf.DatapathEventEVENT_TOO_BIG_SENT)),
		lost("unknown node", f.tcp(portNodeUnknown, "S"), bpf.DatapathDropReasonDROP_NODE_UNKNOWN),
		lost("node without a route", f.tcp(portNoRoute, "S"), bpf.DatapathDropReasonDROP_NODE_ROUTE),
		onIPv4(lost("no common family", f.tcp(portNode3, "S"), bpf.DatapathDropReasonDROP_NODE_FAMILY)),
		lost("empty row", f.tcp(portEmptyRow, "S"), bpf.DatapathDropReasonDROP_NO_NODE),
		lost("no endpoint anywhere", f.tcp(portNoTable, "S"), bpf.DatapathDropReasonDROP_NO_ENDPOINT),
	}
}

func stage2(f family) []fixture {
	pod, pod2 := f.pods[0], f.pods[1]
	local := func(name string, p packet, more ...tally) fixture {
		return fixture{
			name: name, in: p.frame(), verdict: xdpPass, out: delivered(p, pod),
			counts: join(append(more, f.received(p))...),
		}
	}
	lost := func(name string, p packet, reason bpf.DatapathDropReason) fixture {
		return fixture{name: name, in: p.frame(), verdict: xdpDrop, counts: join(f.received(p), dropped(reason))}
	}
	after := func(fixture fixture, before ...packet) fixture {
		fixture.given = func(t *testing.T, w *world) { w.play(t, before...) }
		return fixture
	}
	// moved redirects new flows to the second endpoint before the packet, to show whether the connection's
	// entry was used. before is sent first.
	moved := func(fixture fixture, before ...packet) fixture {
		fixture.given = func(t *testing.T, w *world) {
			w.play(t, before...)
			w.pointTo(t, f, 1)
		}
		return fixture
	}
	idle := func(seconds uint32, fixture fixture) fixture {
		given := fixture.given
		fixture.given = func(t *testing.T, w *world) {
			given(t, w)
			w.age(t, seconds)
		}
		return fixture
	}
	to2 := func(fixture fixture, p packet) fixture { fixture.out = delivered(p, pod2); return fixture }
	gone := func(fixture fixture, replacement netip.AddrPort, before ...packet) fixture {
		fixture.given = func(t *testing.T, w *world) {
			w.play(t, before...)
			w.pointTo(t, f, 1)
			id := 2*(f.endpointSlot-1) + 1
			w.putEndpoint(t, id, replacement)
			t.Cleanup(func() { w.putEndpoint(t, id, pod) })
		}
		return fixture
	}
	cut := func(name string, p packet) fixture {
		fixture := lost(name, p, bpf.DatapathDropReasonDROP_ENDPOINT_GONE)
		fixture.verdict, fixture.out = xdpTX, f.cut(p).frame()
		fixture.counts = join(fixture.counts, event(bpf.DatapathEventEVENT_REJECT_SENT))
		return fixture
	}
	syn, ack, fin, rst, udp := f.tcp(portCluster, "S"), f.tcp(portCluster, "A"), f.tcp(portCluster, "FA"), f.tcp(portCluster, "R"), f.udp(portCluster)
	synAck, answered := answer(syn, pod, "SA"), answer(udp, pod, "")
	serverFIN, serverRST := answer(syn, pod, "FA"), answer(syn, pod, "RA")
	nearRST := rst.with(func(p *packet) { p.sequence = 1001 })
	later := ack.with(func(p *packet) { p.acknowledged = 1<<32 - 1 })
	wildFIN := fin.with(func(p *packet) { p.sequence = 1 << 31 })
	finTaken, serverFINAfter := answer(syn, pod, "A").taking(fin), serverFIN.taking(fin)
	opened := f.opened(portCluster)
	arrivedOld := func(name string, ttl byte) fixture {
		in := syn.frame()
		setTTL(in, ttl)
		fixture := local(name, syn.with(func(p *packet) { p.ttl = 2 }), opened)
		fixture.in = in
		return fixture
	}
	fixtures := []fixture{
		local("SYN", syn, opened),
		local("UDP", udp, opened),
		local("UDP without a checksum", udp.with(func(p *packet) { p.zeroChecksum = true }), opened),
		local("UDP without payload", udp.with(func(p *packet) { p.payload = "" }), opened),
		local("TTL stays", syn.with(func(p *packet) { p.ttl = 2 }), opened),
		arrivedOld("TTL 1 is enough for a host", 1), arrivedOld("TTL 0, too", 0),
		local("traffic class is unchanged", syn.with(func(p *packet) { p.tos = 0x2e<<2 | 1 }), opened),
		local("TCP options", syn.with(func(p *packet) { p.tcpOptions = []layers.TCPOption{mss(1460)} }), opened),
		after(local("retransmitted SYN", syn), syn),
		after(local("ACK after SYN", ack), syn, synAck),
		after(local("established", ack), syn, synAck, ack),
		after(local("second datagram", udp), udp, answered, udp),
		moved(local("half-open flow keeps its endpoint", syn), syn),
		moved(local("established connection keeps its endpoint", ack), syn, synAck, ack),
		moved(local("UDP flow keeps its endpoint", udp), udp),
		moved(local("SYN on an established connection keeps the endpoint", syn), syn, synAck, ack),
		moved(local("RST reaches the same endpoint", rst), syn, synAck, ack),
		moved(local("RST followed by data is ignored", syn), syn, synAck, ack, rst, ack),
		moved(local("SYN after RST not acknowledged by the endpoint", syn), syn, synAck, ack, nearRST),
		moved(local("SYN after only the client sent FIN", syn), syn, synAck, ack, fin),
		moved(local("SYN after only the endpoint sent FIN", syn), syn, synAck, ack, serverFIN),
		to2(moved(local("SYN after both FINs is a new connection", syn, opened), syn, synAck, ack, fin, serverFINAfter, ack), syn),
		to2(moved(local("SYN after both FINs in reverse order", syn, opened), syn, synAck, ack, serverFIN, fin, finTaken), syn),
		moved(local("SYN after FIN of the endpoint and an unacknowledged FIN", syn), syn, synAck, ack, serverFIN, fin),
		to2(moved(local("SYN after RST is a new connection", syn, opened), syn, synAck, ack, rst), syn),
		to2(moved(local("SYN after RST of the endpoint is a new connection", syn, opened), syn, synAck, ack, serverRST), syn),
		moved(local("endpoint that continues after its RST", syn),
			syn, synAck, ack, serverRST, answer(syn, pod, "A")),
		idle(7490, moved(local("SYN on a connection that is idle", syn), syn, synAck, ack)),
		to2(idle(7510, moved(local("SYN on a connection idle longer than the timeout", syn, opened), syn, synAck, ack)), syn),
		idle(7510, moved(local("ACK on an idle connection", ack), syn, synAck, ack)),
		idle(230, moved(local("SYN on a closing connection", syn), syn, synAck, ack, fin, finTaken)),
		to2(idle(250, moved(local("SYN on a connection closing longer than the timeout", syn, opened), syn, synAck, ack, fin, finTaken)), syn),
		idle(250, moved(local("ACK on a connection closing longer than the timeout", ack), syn, synAck, ack, fin, finTaken)),
		idle(250, moved(local("FIN with a wrong sequence number is ignored", syn), syn, synAck, ack, wildFIN, answer(syn, pod, "A"))),
		idle(250, moved(local("FIN not acknowledged by the endpoint is ignored", syn), syn, synAck, ack, fin, answer(syn, pod, "A"))),
		idle(250, moved(local("FIN before data of the client is ignored", syn),
			syn, synAck, ack, fin, answer(syn, pod, "A").with(func(p *packet) { p.acknowledged = 3000 }), ack)),
		idle(250, moved(local("spoofed FIN after that of the client is ignored", ack), syn, synAck, ack, fin, finTaken,
			fin.with(func(p *packet) { p.sequence = 2000 }))),
		idle(50, moved(local("SYN on a half-open connection", syn), syn)),
		to2(idle(70, moved(local("SYN on a flow half-open longer than the timeout", syn, opened), syn)), syn),
		idle(170, moved(local("UDP on an idle flow", udp), udp, answered, udp)),
		to2(idle(190, moved(local("UDP flow idle longer than the timeout", udp, opened), udp, answered, udp)), udp),
		idle(170, moved(local("UDP after an idle query", udp), udp)),
		to2(gone(local("SYN to a removed endpoint", syn, opened), netip.AddrPort{}, syn, synAck, ack), syn),
		to2(gone(local("UDP to a removed endpoint", udp, opened), netip.AddrPort{}, udp, answered, udp), udp),
		to2(gone(local("UDP to an endpoint with a reused id", udp, opened), f.pods[1], udp, answered, udp), udp),
		gone(cut("ACK to a removed endpoint", ack), netip.AddrPort{}, syn, synAck, ack),
		gone(cut("ACK to an endpoint with a reused id", ack), f.pods[1], syn, synAck, ack),
		gone(cut("FIN to a removed endpoint", fin), netip.AddrPort{}, syn, synAck, ack),
		gone(cut("ACK beyond the sent data", later), netip.AddrPort{}, syn, synAck, ack),
		gone(lost("RST to a removed endpoint", rst, bpf.DatapathDropReasonDROP_ENDPOINT_GONE), netip.AddrPort{}, syn, synAck, ack),
		gone(lost("RST with an ACK", f.tcp(portCluster, "RA"), bpf.DatapathDropReasonDROP_ENDPOINT_GONE), netip.AddrPort{}, syn, synAck, ack),
		gone(lost("data without an ACK", f.tcp(portCluster, "P"), bpf.DatapathDropReasonDROP_ENDPOINT_GONE), netip.AddrPort{}, syn, synAck, ack),
		local("ACK of an unknown connection without other nodes to query", ack, opened),
		local("RST of an unknown connection without other nodes to query", rst, opened),
		local("chain with unknown nodes only", f.tcp(portChainUnknown, "A"), f.opened(portChainUnknown)),
		local("policy Local", f.tcp(portLocal, "S"), f.opened(portLocal)),
		local("ACK of an unknown connection, policy Local", f.tcp(portLocal, "A"), f.opened(portLocal)),
		lost("policy Local without an endpoint here", f.tcp(portLocalEmpty, "S"), bpf.DatapathDropReasonDROP_NO_ENDPOINT),
		lost("row of this node without an endpoint", f.tcp(portClusterEmpty, "S"), bpf.DatapathDropReasonDROP_NO_ENDPOINT),
	}
	if f.vip.Is4() {
		router := []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
		fixtures = append(fixtures,
			local("IP options", syn.with(func(p *packet) { p.ipOptions = router }), opened),
			local("longest IP header", syn.with(func(p *packet) {
				for range 10 {
					p.ipOptions = append(p.ipOptions, router...)
				}
			}), opened))
	}
	return fixtures
}

func setTTL(frame []byte, ttl byte) {
	if frame[12] == 0x86 {
		frame[14+7] = ttl
		return
	}
	ip := frame[14 : 14+20]
	ip[8], ip[10], ip[11] = ttl, 0, 0
	sum := wordSum(ip)
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}

func mss(size uint16) layers.TCPOption {
	return layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{byte(size >> 8), byte(size)}}
}

// lookupForwarded sends packets of unknown connections along the chain and back.
func lookupForwarded(f family) []fixture {
	asked := event(bpf.DatapathEventEVENT_LOOKUP_FORWARDED)
	returned := event(bpf.DatapathEventEVENT_LOOKUP_RETURNED)
	syn, ack, udp := f.tcp(portChain, "S"), f.tcp(portChain, "A"), f.udp(portChain)
	arrived := func(p packet, chooser uint16, chain ...uint16) tunnel { return p.arrived(v4, chooser, chain...) }
	toNode2 := func(t tunnel) []byte { return t.sent(uplinkMAC, node2MAC) }
	toNode3 := func(t tunnel) []byte { return t.sent(uplinkMAC, node3MAC) }
	otherACK := ack.with(func(p *packet) { p.acknowledged = 1 << 30 })
	// Two frontends share one endpoint, which can have the client's port only once.
	contested := func(t *testing.T, w *world) { w.play(t, syn, f.tcp(portCluster, "S")) }
	// The client's port had a connection here, but its endpoint was removed.
	formerly := func(t *testing.T, w *world) {
		w.play(t, syn, answer(syn, f.pods[0], "SA"), ack)
		id := 2*(f.endpointSlot-1) + 1
		w.putEndpoint(t, id, netip.AddrPort{})
		t.Cleanup(func() { w.putEndpoint(t, id, f.pods[0]) })
	}
	return []fixture{
		{
			name: "ACK from the router is forwarded along the chain of the row", in: ack.frame(), verdict: xdpTX,
			out: toNode2(ack.tunnelled(v4.node2, selfID, 3)), counts: join(f.received(ack), asked),
		},
		{
			name: "SYN from the router is served", in: syn.frame(), verdict: xdpPass,
			out: delivered(syn, f.pods[0]), counts: join(f.received(syn), f.opened(portChain)),
		},
		{
			name: "UDP from the router is served", in: udp.frame(), verdict: xdpPass,
			out: delivered(udp, f.pods[0]), counts: join(f.received(udp), f.opened(portChain)),
		},
		{
			name: "ACK that completes a handshake is served", before: [][]byte{syn.frame()}, replies: [][]byte{answer(syn, f.pods[0], "SA").frame()},
			in: ack.frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]), counts: f.received(ack),
		},
		{
			name: "ACK of an unvalidated flow is forwarded along the chain of the row", before: [][]byte{syn.frame()}, in: ack.frame(), verdict: xdpTX,
			out: toNode2(ack.tunnelled(v4.node2, selfID, 3)), counts: join(f.received(ack), asked),
		},
		{
			name: "ACK that does not complete a handshake is forwarded along the chain of the row", before: [][]byte{syn.frame()},
			replies: [][]byte{answer(syn, f.pods[0], "SA").frame()}, in: otherACK.frame(), verdict: xdpTX,
			out: toNode2(otherACK.tunnelled(v4.node2, selfID, 3)), counts: join(f.received(otherACK), asked),
		},
		{
			name: "ACK of a flow with a conflicting flow of another frontend is forwarded along the chain of the row", given: contested,
			in: ack.frame(), verdict: xdpTX, out: toNode2(ack.tunnelled(v4.node2, selfID, 3)), counts: join(f.received(ack), asked),
		},
		{
			name: "unknown ACK from a node is forwarded along the chain of the packet", in: arrived(ack, selfID, 3, 2).frame(), verdict: xdpTX,
			out: toNode3(arrived(ack, selfID, 3, 2).onwards(node3, 2)), counts: asked,
		},
		{
			name: "this node and unknown nodes in the chain are skipped", in: arrived(ack, 2, selfID, 99, 3).frame(), verdict: xdpTX,
			out: toNode3(arrived(ack, 2).onwards(node3)), counts: asked,
		},
		{
			name: "the end of the chain returns the packet to the primary", in: arrived(ack, 2).frame(), verdict: xdpTX,
			out: toNode2(arrived(ack, 2).onwards(v4.node2)), counts: returned,
		},
		{
			name: "returned to the primary: served", in: arrived(ack, selfID).frame(), verdict: xdpPass,
			out: delivered(ack, f.pods[0]), counts: f.opened(portChain),
		},
		{
			name: "unknown primary", in: arrived(ack, 99).frame(), verdict: xdpPass,
			out: delivered(ack, f.pods[0]), counts: f.opened(portChain),
		},
		{
			name: "ACK from a node that completes a handshake is served", before: [][]byte{syn.frame()}, replies: [][]byte{answer(syn, f.pods[0], "SA").frame()},
			in: arrived(ack, selfID, 3).frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]),
		},
		{
			name: "ACK of an unvalidated flow from a node is forwarded along the chain", before: [][]byte{syn.frame()},
			in: arrived(ack, selfID, 3).frame(), verdict: xdpTX, out: toNode3(arrived(ack, selfID, 3).onwards(node3)), counts: asked,
		},
		{
			name: "ACK of an unvalidated flow returned to the primary is served", before: [][]byte{syn.frame()},
			in: arrived(ack, selfID).frame(), verdict: xdpPass, out: delivered(ack, f.pods[0]),
		},
		{
			name: "ACK of a connection without its endpoint, from a node, is forwarded along the chain", given: formerly,
			in: arrived(ack, selfID, 3).frame(), verdict: xdpTX, out: toNode3(arrived(ack, selfID, 3).onwards(node3)), counts: asked,
		},
		{
			name: "ACK of a connection without its endpoint is returned to the primary", given: formerly,
			in: arrived(ack, 2).frame(), verdict: xdpTX, out: toNode2(arrived(ack, 2).onwards(v4.node2)), counts: returned,
		},
		{
			name: "SYN from a node is served", in: arrived(syn, selfID, 2, 3).frame(), verdict: xdpPass,
			out: delivered(syn, f.pods[0]), counts: f.opened(portChain),
		},
		{
			name: "UDP from a node is served", in: arrived(udp, selfID, 2, 3).frame(), verdict: xdpPass,
			out: delivered(udp, f.pods[0]), counts: f.opened(portChain),
		},
	}
}

// conflicts are flows from one source port to two frontends with the same endpoints.
func conflicts(f family) []fixture {
	first, twin := f.tcp(portCluster, "S"), f.tcp(portClusterTwin, "S")
	fin := f.tcp(portCluster, "FA")
	return []fixture{
		{
			name: "no other endpoint", in: twin.frame(), verdict: xdpDrop,
			given:  func(t *testing.T, w *world) { w.establish(t, first, f.pods[0]) },
			counts: join(f.received(twin), dropped(bpf.DatapathDropReasonDROP_TUPLE_CONFLICT)),
		},
		{
			name: "no other endpoint, but the other flow is half-open", before: [][]byte{first.frame()},
			in: twin.frame(), verdict: xdpPass, out: delivered(twin, f.pods[0]),
			counts: join(f.received(twin), f.opened(portClusterTwin)),
		},
		{
			name: "another endpoint is free", before: [][]byte{first.frame()},
			given: func(t *testing.T, w *world) {
				w.putEndpointRows(t, f, func(row int) int {
					_, endpoint := flowHash(twin)
					if row == int(endpoint>>23) {
						return 0
					}
					_, endpoint = flowHash(first)
					if row == int(endpoint>>23) {
						return 0
					}
					return 1
				})
			},
			in: twin.frame(), verdict: xdpPass, out: delivered(twin, f.pods[1]),
			counts: join(f.received(twin), f.opened(portClusterTwin)),
		},
		{
			name: "the other connection is closed",
			given: func(t *testing.T, w *world) {
				w.establish(t, first, f.pods[0])
				w.play(t, fin, answer(first, f.pods[0], "FA").taking(fin))
			},
			in: twin.frame(), verdict: xdpPass, out: delivered(twin, f.pods[0]),
			counts: join(f.received(twin), f.opened(portClusterTwin)),
		},
		{
			name: "the other connection is half closed",
			given: func(t *testing.T, w *world) {
				w.establish(t, first, f.pods[0])
				w.play(t, fin, answer(first, f.pods[0], "A").taking(fin))
			},
			in: twin.frame(), verdict: xdpDrop,
			counts: join(f.received(twin), dropped(bpf.DatapathDropReasonDROP_TUPLE_CONFLICT)),
		},
		{
			name: "the other connection was reset",
			given: func(t *testing.T, w *world) {
				w.establish(t, first, f.pods[0])
				w.play(t, answer(first, f.pods[0], "R"))
			},
			in: twin.frame(), verdict: xdpPass, out: delivered(twin, f.pods[0]),
			counts: join(f.received(twin), f.opened(portClusterTwin)),
		},
	}
}
