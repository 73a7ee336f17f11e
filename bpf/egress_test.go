// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// A replyFixture is a frame that leaves by an uplink.
type replyFixture struct {
	name   string
	before []packet
	given  func(t *testing.T, w *world)
	in     packet
	// out is the resulting frame; nil means unchanged.
	out []byte
	// secondOption overwrites the second byte of the TCP options of both frames without a checksum update:
	// the error must be preserved.
	secondOption byte
}

func TestEgress(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, fixture := range slices.Concat(replies(f), icmpReplies(f), fragmentReplies(f)) {
			t.Run(f.name+"/"+fixture.name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				for _, p := range fixture.before {
					w.ingress(t, p.frame())
				}
				if fixture.given != nil {
					fixture.given(t, w)
				}
				want := fixture.out
				if want == nil {
					want = fixture.in.frame()
				}
				in := fixture.in.frame()
				if fixture.secondOption != 0 {
					at := len(in) - len(fixture.in.payload) - 8 + 1
					in[at], want[at] = fixture.secondOption, fixture.secondOption
				}
				checkFrame(t, w.egress(t, in), want)
			})
		}
	}
}

// tunnelled returns a packet of pods encapsulated by a CNI.
func tunnelled(f family, port uint16) packet {
	return packet{
		from: netip.AddrPortFrom(f.self, 50000), to: netip.AddrPortFrom(f.node2, port),
		protocol: layers.IPProtocolUDP, payload: foreignGeneve,
	}
}

func replies(f family) []replyFixture {
	syn, ack, udp := f.tcp(portCluster, "S"), f.tcp(portCluster, "A"), f.udp(portCluster)
	pod := f.pods[0]
	translated := func(p packet, port uint16) []byte {
		p.from = f.to(port)
		return p.frame()
	}
	reply := func(name string, in packet, before ...packet) replyFixture {
		return replyFixture{name: name, before: before, in: in, out: translated(in, portCluster)}
	}
	untouched := func(name string, in packet, before ...packet) replyFixture {
		return replyFixture{name: name, before: before, in: in}
	}
	options := func(options ...layers.TCPOption) func(*packet) {
		return func(p *packet) { p.tcpOptions = options }
	}
	offered := func(fixture replyFixture) replyFixture {
		fixture.given = func(t *testing.T, w *world) { w.egress(t, answer(syn, pod, "SA").frame()) }
		return fixture
	}
	established := func(fixture replyFixture) replyFixture {
		fixture.given = func(t *testing.T, w *world) { w.establish(t, syn, pod) }
		return fixture
	}
	synAck := answer(syn, pod, "SA")
	// 1500 bytes of MTU, 60 of encapsulation, and the headers.
	limit := uint16(1500 - overhead() - 40)
	if f.vip.Is6() {
		limit -= 20
	}
	clamped := func(name string, is, want uint16, around ...layers.TCPOption) replyFixture {
		fixture := reply(name, synAck.with(options(append(around[:len(around):len(around)], mss(is))...)), syn)
		fixture.out = translated(synAck.with(options(append(around[:len(around):len(around)], mss(want))...)), portCluster)
		return fixture
	}
	nop := layers.TCPOption{OptionType: layers.TCPOptionKindNop, OptionLength: 1}
	timestamps := layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: []byte("12345678")}
	cut := layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 3, OptionData: []byte{9}}
	unknown := layers.TCPOption{OptionType: 99, OptionLength: 4, OptionData: make([]byte, 2)}
	end := layers.TCPOption{OptionType: layers.TCPOptionKindEndList, OptionLength: 1}
	damaged := func(name string, length byte) replyFixture {
		fixture := reply(name, synAck.with(options(unknown, mss(1460))), syn)
		fixture.secondOption = length
		return fixture
	}
	onIPv6 := clamped("MSS for an outer IPv6 header", 1460, limit-20)
	onIPv6.given = func(t *testing.T, w *world) {
		var self bpf.DatapathSelf
		if err := w.Settings.Lookup(uint32(0), &self); err != nil {
			t.Fatal(err)
		}
		self.Overhead = uint16(overhead() + 20)
		put(t, w.Settings, uint32(0), self)
		t.Cleanup(func() { w.putSelf(t, v4.self, v6.self) })
	}
	local := f.tcp(portLocal, "S")
	localAnswer := answer(local, pod, "SA").with(options(mss(1460)))
	fixtures := []replyFixture{
		reply("SYN-ACK of a half-open connection", synAck, syn),
		offered(reply("data of a half-open connection (TCP Fast Open)", answer(syn, pod, "A"), syn)),
		reply("reset of a refused connection", answer(syn, pod, "RA"), syn),
		established(reply("data", answer(syn, pod, "A"))),
		established(reply("FIN", answer(syn, pod, "FA"))),
		reply("data of a connection evicted here", answer(syn, pod, "A"), ack),
		reply("UDP", answer(udp, pod, ""), udp),
		{
			name: "UDP to a known client", in: answer(udp, pod, ""), out: translated(answer(udp, pod, ""), portCluster),
			given: func(t *testing.T, w *world) { w.establish(t, udp, pod) },
		},
		reply("UDP without a checksum", answer(udp, pod, "").with(func(p *packet) { p.zeroChecksum = true }), udp),
		untouched("unknown client", answer(syn, pod, "A").with(func(p *packet) { p.to = netip.AddrPortFrom(f.other, 40000) }), syn),
		untouched("unknown port of the client",
			answer(syn, pod, "A").with(func(p *packet) { p.to = netip.AddrPortFrom(p.to.Addr(), 40001) }), syn),
		untouched("other endpoint", answer(syn, f.pods[1], "A"), syn),
		untouched("other protocol", answer(udp, pod, ""), syn),
		untouched("SCTP", answer(syn, pod, "A").with(func(p *packet) { p.protocol = layers.IPProtocolSCTP }), syn),
		untouched("GRE", answer(syn, pod, "").with(func(p *packet) { p.protocol = layers.IPProtocolGRE }), syn),
		untouched("VXLAN of others", tunnelled(f, 4789), syn),
		untouched("Geneve of others", tunnelled(f, 6081), syn),
		untouched("ICMP", answer(syn, pod, "").with(func(p *packet) { p.protocol = layers.IPProtocolICMPv4 }), syn),
		clamped("MSS lowered", 1460, limit),
		clamped("MSS as large as fits", limit, limit),
		clamped("MSS smaller than what fits", 536, 536),
		clamped("MSS in an odd place", 1460, limit, nop),
		clamped("MSS after other options", 1460, limit, nop, nop, timestamps),
		clamped("MSS after an unknown option", 1460, limit, unknown),
		clamped("a second MSS", 1460, limit, mss(536)),
		onIPv6,
		established(reply("MSS option on data is unchanged", answer(syn, pod, "A").with(options(mss(1460))))),
		reply("truncated MSS option", synAck.with(options(cut)), syn),
		damaged("option longer than the header", 40),
		damaged("option of length 1", 1),
		reply("options ended before the MSS option", synAck.with(options(end, end, end, end, mss(1460))), syn),
		{name: "MSS is unchanged under policy Local", before: []packet{local}, in: localAnswer, out: translated(localAnswer, portLocal)},
	}
	if f.vip.Is4() {
		optioned := answer(syn, pod, "A").with(func(p *packet) {
			p.ipOptions = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
		})
		first := answer(udp, pod, "").with(func(p *packet) { p.more = true })
		fixtures = append(fixtures,
			established(reply("IP options", optioned)),
			reply("first fragment", first, udp))
	}
	return fixtures
}

// cutReply delivers a datagram, and returns its reply, truncated before the checksum.
func (w *world) cutReply(t *testing.T, f family) (packet, []byte) {
	t.Helper()
	w.forget(t)
	udp := f.udp(portCluster)
	w.ingress(t, udp.frame())
	reply := answer(udp, f.pods[0], "").with(func(p *packet) { p.payload = "" }).frame()
	return udp, reply[:len(reply)-4]
}

// A reply truncated within the fields to rewrite is dropped.
func TestReplyNotRewritten(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			_, reply := w.cutReply(t, f)
			earlier := w.tally(t)
			if verdict, _ := w.runEgress(t, reply); verdict != tcxDrop {
				t.Errorf("verdict %d, want %d", verdict, tcxDrop)
			}
			want := dropped(bpf.DatapathDropReasonDROP_REPLY_REWRITE)
			if counts := w.tally(t).since(earlier); !maps.Equal(counts, want) {
				t.Errorf("counters increased by %v, want %v", counts, want)
			}
		})
	}
}

// An evicted entry of the reverse table is restored by the client's traffic.
func TestReverseRefreshed(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			syn, ack := f.tcp(portCluster, "S"), f.tcp(portCluster, "A")
			w.establish(t, syn, f.pods[0])
			w.evictReverse(t)
			w.forgetFlowDigests(t)
			reply := answer(syn, f.pods[0], "A")
			checkFrame(t, w.egress(t, reply.frame()), reply.frame())
			w.age(t, 60)
			w.ingress(t, ack.frame())
			translated := reply
			translated.from = f.to(portCluster)
			checkFrame(t, w.egress(t, reply.frame()), translated.frame())
		})
	}
}

// An expired flow does not occupy its client's port for other frontends.
func TestConflictWithIdle(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		syn, fin := f.tcp(portCluster, "S"), f.tcp(portCluster, "FA")
		for _, test := range []struct {
			name          string
			first         packet
			fin, finReply *packet
			idle          uint32
		}{
			{name: "TCP", first: syn, idle: 7500},
			{
				name: "TCP closed by the client", first: syn, fin: &fin,
				finReply: ptr(answer(syn, f.pods[0], "A").taking(fin)), idle: 240,
			},
			{name: "TCP, FIN of the client not acknowledged by the endpoint", first: syn, fin: &fin, idle: 7500},
			{name: "TCP closed by the endpoint", first: syn, finReply: ptr(answer(syn, f.pods[0], "FA")), idle: 240},
			{name: "UDP", first: f.udp(portCluster), idle: 180},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				w.establish(t, test.first, f.pods[0])
				if test.fin != nil {
					w.ingress(t, test.fin.frame())
				}
				if test.finReply != nil {
					w.egress(t, test.finReply.frame())
				}
				twin := test.first.with(func(p *packet) { p.to = f.to(portClusterTwin) })
				w.age(t, test.idle-5)
				if got := w.ingress(t, twin.frame()).verdict; got != xdpDrop {
					t.Errorf("%d s idle: verdict %v, want %v", test.idle-5, got, xdpDrop)
				}
				w.age(t, 10)
				if got := w.ingress(t, twin.frame()).verdict; got != xdpPass {
					t.Errorf("%d s idle: verdict %v, want %v", test.idle+5, got, xdpPass)
				}
				w.establish(t, twin, f.pods[0])
				reply := answer(twin, f.pods[0], "A")
				translated := reply
				translated.from = f.to(portClusterTwin)
				checkFrame(t, w.egress(t, reply.frame()), translated.frame())
			})
		}
	}
}

func ptr[T any](v T) *T { return &v }
