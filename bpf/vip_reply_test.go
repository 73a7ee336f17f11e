// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

func (f family) echo(payload string) (request, reply packet) {
	kind := icmpKind{kind: 8, rest: 0x12340001}
	answer := icmpKind{kind: 0, rest: kind.rest}
	if f.vip.Is6() {
		kind.kind, answer.kind = 128, 129
	}
	request = icmp(f.client.Addr(), f.vip, kind, []byte(payload))
	reply = icmp(f.vip, f.client.Addr(), answer, []byte(payload)).with(sentBack)
	reply.ttl = 64
	return request, reply
}

func sentBack(p *packet) { p.source, p.destination = uplinkMAC, routerMAC }

func answered(p *packet) {
	sentBack(p)
	p.made, p.ttl = true, 64
}

func (f family) refused(syn packet) packet {
	return packet{from: syn.to, to: syn.from, protocol: layers.IPProtocolTCP, flags: "RA", tcp: func(tcp *layers.TCP) {
		tcp.Seq, tcp.Ack, tcp.Window = 0, 1001+uint32(len(syn.payload)), 0
	}}.with(answered)
}

func (f family) cut(ack packet) packet {
	return packet{from: ack.to, to: ack.from, protocol: layers.IPProtocolTCP, flags: "R", tcp: func(tcp *layers.TCP) {
		tcp.Seq, tcp.Ack, tcp.Window = cmp.Or(ack.acknowledged, 2000), 0, 0
	}}.with(answered)
}

// told returns the VIP's ICMP error about a client's packet.
func (f family) told(kind icmpKind, about packet) packet {
	limit, tos := 1280-48, uint8(0)
	if f.vip.Is4() {
		limit, tos = 576-28, 0xc0
	}
	embedded := about.ip()
	p := icmp(f.vip, about.from.Addr(), kind, embedded[:min(limit, len(embedded))]).with(answered)
	p.tos = tos
	return p
}

func (f family) portUnreachable() icmpKind {
	if f.vip.Is4() {
		return icmpKind{kind: 3, code: 3}
	}
	return icmpKind{kind: 1, code: 4}
}

func (f family) tooBig(mtu uint32) icmpKind {
	if f.vip.Is4() {
		return icmpKind{kind: 3, code: 4, rest: mtu}
	}
	return icmpKind{kind: 2, rest: mtu}
}

func answers(f family) []fixture {
	return append(append(echoes(f), refusals(f)...), tooLong(f)...)
}

// tooLong are packets that exceed the path MTU to their node when encapsulated.
func tooLong(f family) []fixture {
	narrow := func(mtu int, fixture fixture) fixture {
		fixture.given = func(t *testing.T, _ *world) {
			ip(t, fmt.Sprintf("route add 198.51.100.12/32 dev uplink mtu lock %d", mtu))
			t.Cleanup(func() { ip(t, "route delete 198.51.100.12/32 dev uplink") })
		}
		return fixture
	}
	long := f.udp(portNode2).with(func(p *packet) { p.payload = strings.Repeat("x", 1400-f.header()) })
	toldTo := func(in packet, mtu uint32) fixture {
		return fixture{
			name: "ICMP error sent", in: in.frame(), verdict: xdpTX, out: f.told(f.tooBig(mtu), in).frame(),
			counts: join(f.received(in), dropped(bpf.DatapathDropReasonDROP_PACKET_TOO_BIG), event(bpf.DatapathEventEVENT_TOO_BIG_SENT)),
		}
	}
	silent := fixture{
		in: long.frame(), verdict: xdpDrop, counts: join(f.received(long), dropped(bpf.DatapathDropReasonDROP_PACKET_TOO_BIG)),
	}
	named := func(name string, fixture fixture) fixture { fixture.name = name; return fixture }
	fixtures := []fixture{
		named("packet larger than the path MTU to the node", narrow(1400, toldTo(long, 1400-uint32(overhead())))),
		named("unspecified source", narrow(1400, fixture{
			in: long.with(func(p *packet) { p.from = netip.AddrPortFrom(f.loopback(), 40000) }).frame(), verdict: xdpDrop,
			counts: join(f.received(long), dropped(bpf.DatapathDropReasonDROP_MARTIAN)),
		})),
	}
	if f.vip.Is6() {
		// RFC 8200, section 5: every path has an MTU of at least 1280.
		return append(fixtures, named("path MTU below 1280 for the client", narrow(1279+overhead(), silent)),
			named("path MTU of 1280 for the client", narrow(1280+overhead(), toldTo(long, 1280))))
	}
	whole := long.with(func(p *packet) { p.divisible = true })
	return append(fixtures, named("packet that may be fragmented", narrow(1400, toldTo(whole, 1400-uint32(overhead())))),
		named("small path MTU", narrow(600, toldTo(long, 600-uint32(overhead())))))
}

func (f family) loopback() netip.Addr {
	if f.vip.Is4() {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv6Loopback()
}

func echoes(f family) []fixture {
	counted := event(bpf.DatapathEventEVENT_ECHO_REPLY_SENT)
	served := func(name, payload string) fixture {
		request, reply := f.echo(payload)
		return fixture{name: name, in: request.frame(), verdict: xdpTX, out: reply.frame(), counts: counted}
	}
	drop := func(name string, reason bpf.DatapathDropReason, in []byte) fixture {
		return fixture{name: name, in: in, verdict: xdpDrop, counts: dropped(reason)}
	}
	request, reply := f.echo("ping")
	damaged, damagedReply := request, reply
	damaged.payload = damaged.payload[:10] + "x" + damaged.payload[11:]
	damagedReply.payload = damagedReply.payload[:10] + "x" + damagedReply.payload[11:]
	from := func(a string) []byte {
		in, _ := f.echo("ping")
		in.from = netip.AddrPortFrom(netip.MustParseAddr(a), 0)
		return in.frame()
	}
	sources := []string{"0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255"}
	if f.vip.Is6() {
		sources = []string{"::", "::1", "ff02::1"}
	}
	noRequest := icmp(f.client.Addr(), f.vip, icmpKind{kind: 0}, []byte("pong"))
	if f.vip.Is6() {
		noRequest = icmp(f.client.Addr(), f.vip, icmpKind{kind: 129}, []byte("pong"))
	}
	cut := request.frame()[:14+f.header()+7]
	fixtures := []fixture{
		served("echo", "ping"),
		served("echo without data", ""),
		served("echo with an odd number of bytes", "odd"),
		served("longest echo", strings.Repeat("x", 1500-f.header()-8)),
		{name: "damaged echo request returns a damaged reply", in: damaged.frame(), verdict: xdpTX, out: damagedReply.frame(), counts: counted},
		{
			name: "echo in a VLAN", in: tagged(request.frame(), 0x81000007), verdict: xdpTX,
			out: tagged(reply.frame(), 0x81000007), counts: counted,
		},
		drop("echo from a node", bpf.DatapathDropReasonDROP_ICMP_TYPE, request.arrived(v4, 0).frame()),
		drop("echo reply", bpf.DatapathDropReasonDROP_ICMP_TYPE, noRequest.frame()),
		drop("truncated echo", bpf.DatapathDropReasonDROP_MALFORMED, cut),
		drop("echo cut off", bpf.DatapathDropReasonDROP_MALFORMED, request.frame()[:len(request.frame())-1]),
		notSent(fixture{
			name: "driver without XDP_TX", in: request.frame(), verdict: xdpPass,
			out:    reply.with(func(p *packet) { p.source, p.destination = routerMAC, uplinkMAC }).frame(),
			counts: join(counted, event(bpf.DatapathEventEVENT_PASSED_TO_KERNEL)),
		}),
	}
	for _, source := range sources {
		fixtures = append(fixtures, drop("echo from "+source, bpf.DatapathDropReasonDROP_ECHO_SOURCE, from(source)))
	}
	return fixtures
}

// notSent runs the fixture with a driver that cannot transmit from XDP.
func notSent(fixture fixture) fixture {
	fixture.handed = true
	fixture.given = noTransmit
	return fixture
}

func noTransmit(t *testing.T, w *world) {
	w.setFlags(t, bpf.DatapathSelfFlagSELF_NO_TRANSMIT)
}

func (w *world) setFlags(t *testing.T, flags bpf.DatapathSelfFlag) {
	t.Helper()
	w.changeSelf(t, func(self *bpf.DatapathSelf) { self.Flags |= uint32(flags) })
}

func (w *world) changeSelf(t *testing.T, change func(*bpf.DatapathSelf)) {
	t.Helper()
	var self bpf.DatapathSelf
	if err := w.Settings.Lookup(uint32(0), &self); err != nil {
		t.Fatal(err)
	}
	change(&self)
	put(t, w.Settings, uint32(0), self)
	t.Cleanup(func() { w.putSelf(t, v4.self, v6.self) })
}

func refusals(f family) []fixture {
	syn, udp := f.tcp(portRefused, "S"), f.udp(portRefused)
	lost := func(p packet) tally { return join(f.received(p), dropped(bpf.DatapathDropReasonDROP_NO_ENDPOINT)) }
	counted := event(bpf.DatapathEventEVENT_REJECT_SENT)
	refused := func(name string, in, out packet) fixture {
		return fixture{name: name, in: in.frame(), verdict: xdpTX, out: out.frame(), counts: join(lost(in), counted)}
	}
	silent := func(name string, in packet) fixture {
		return fixture{name: name, in: in.frame(), verdict: xdpDrop, counts: lost(in)}
	}
	unreachable := func(name string, in packet) fixture { return refused(name, in, f.told(f.portUnreachable(), in)) }
	bare := syn.with(func(p *packet) { p.payload = "" })
	longer := func(p *packet) {
		p.tcpOptions = []layers.TCPOption{mss(1460)}
		if f.vip.Is4() {
			p.ipOptions = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
		} else {
			p.extensions = []extension{padding(destination, 1)}
		}
	}
	back := func(p *packet) { p.source, p.destination = routerMAC, uplinkMAC }
	handed := event(bpf.DatapathEventEVENT_PASSED_TO_KERNEL)
	return []fixture{
		refused("SYN", bare, f.refused(bare)),
		refused("SYN with data", syn, f.refused(syn)),
		refused("SYN with options", syn.with(longer), f.refused(syn)),
		unreachable("UDP", udp),
		unreachable("long UDP", udp.with(func(p *packet) { p.payload = strings.Repeat("x", 1400) })),
		unreachable("UDP with an odd length", udp.with(func(p *packet) { p.payload = "odd" })),
		unreachable("empty UDP", udp.with(func(p *packet) { p.payload = "" })),
		silent("ACK", f.tcp(portRefused, "A")),
		silent("SYN-ACK", f.tcp(portRefused, "SA")),
		silent("RST", f.tcp(portRefused, "R")),
		notSent(fixture{
			name: "driver without XDP_TX", in: syn.frame(), verdict: xdpPass,
			out: f.refused(syn).with(back).frame(), counts: join(lost(syn), counted, handed),
		}),
		{
			name: "from a node", in: udp.arrived(v4, 0).frame(), verdict: xdpPass, handed: true,
			out:    f.told(f.portUnreachable(), udp).with(back).frame(),
			counts: join(dropped(bpf.DatapathDropReasonDROP_NO_ENDPOINT), counted, handed),
		},
	}
}

// Replies are limited per source and second, independent of other sources.
func TestAnswerLimit(t *testing.T) {
	w := newWorld(t)
	const perSecond = 100
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			request, _ := f.echo("ping")
			before, begin := w.tally(t), time.Now()
			const sent = 5000
			for range sent {
				w.ingress(t, request.frame())
			}
			windows := uint64(time.Since(begin)/time.Second) + 2
			counts := w.tally(t).since(before)
			given := counts[fmt.Sprintf("event %d", bpf.DatapathEventEVENT_ECHO_REPLY_SENT)]
			if given < perSecond || given > windows*perSecond {
				t.Errorf("%d replies in %v, outside the rate limit", given, time.Since(begin))
			}
			if got := counts[fmt.Sprintf("drop %d", bpf.DatapathDropReasonDROP_ECHO_RATE_LIMIT)]; given+got != sent {
				t.Errorf("%d replies and %d rate limit drops for %d requests", given, got, sent)
			}
			request.from = netip.AddrPortFrom(f.other, 0)
			if got := w.ingress(t, request.frame()).verdict; got != xdpTX {
				t.Errorf("other source: verdict %v, want %v", got, xdpTX)
			}
		})
	}
}

// A flood of one VIP exhausts the shared limit, but each source of another VIP still gets replies.
func TestRepliesOfOtherVIPDuringFlood(t *testing.T) {
	w := newWorld(t)
	ask := func(f family, n int) (answered int) {
		request, _ := f.echo("ping")
		s := newSpoofer(w, request)
		at := map[bool]int{true: 14 + 12, false: 14 + 8}[s.ipv4]
		for range n {
			binary.BigEndian.PutUint32(s.run.Data[at:], 2<<28+s.random.Uint32N(1<<28))
			if s.send(t) == xdpTX {
				answered++
			}
		}
		return answered
	}
	const perVIP, inAll = 1000, 10_000
	n := max(30_000, floodPackets(t))
	if got := ask(v4, n); got < perVIP+inAll || n == 30_000 && got > 2*(perVIP+inAll) {
		t.Errorf("%d of %d requests were answered, want the VIP's and the global burst", got, n)
	}
	if got := ask(v6, perVIP); got < perVIP*9/10 {
		t.Errorf("%d of %d requests to the other VIP were answered", got, perVIP)
	}
}
