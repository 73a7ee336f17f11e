// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"slices"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

const (
	hopByHop    = layers.IPProtocolIPv6HopByHop
	routing     = layers.IPProtocolIPv6Routing
	destination = layers.IPProtocolIPv6Destination
)

// padding is an extension header with padding options of 8*eights bytes.
func padding(kind layers.IPProtocol, eights int) extension {
	body := make([]byte, 8*eights-1)
	body[0] = byte(eights - 1)
	// Pad1 six times, or PadN (RFC 8200, section 4.2).
	if eights > 1 {
		body[1], body[2] = 1, byte(min(255, 8*eights-4))
	}
	return extension{kind: kind, body: body}
}

func routingHeader(kind, segmentsLeft byte) extension {
	return extension{kind: routing, body: []byte{0, kind, segmentsLeft, 0, 0, 0, 0}}
}

// fragmentHeader's offset is in units of 8 bytes.
func fragmentHeader(offset uint16, more bool, id uint32) extension {
	word := offset << 3
	if more {
		word |= 1
	}
	return extension{kind: layers.IPProtocolIPv6Fragment, body: []byte{
		0, byte(word >> 8), byte(word), byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id),
	}}
}

func headers(f family) []fixture {
	syn := f.tcp(portCluster, "S")
	served := func(name string, change func(*packet)) fixture {
		in := syn.with(change)
		return fixture{
			name: name, in: in.frame(), verdict: xdpPass, out: delivered(in, f.pods[0]),
			counts: join(f.received(in), f.opened(portCluster)),
		}
	}
	fromNode := func(name string, change func(*packet)) fixture {
		in := syn.with(change)
		return fixture{
			name: name + " from a node", in: in.arrived(v4, 0).frame(), verdict: xdpPass,
			out: delivered(in, f.pods[0]), counts: f.opened(portCluster),
		}
	}
	lost := func(name string, reason bpf.DatapathDropReason, change func(*packet)) fixture {
		return fixture{name: name, in: syn.with(change).frame(), verdict: xdpDrop, counts: dropped(reason)}
	}
	if f.vip.Is4() {
		return append(ipv4Options(served, fromNode, lost), damagedOptions(syn)...)
	}
	extended := func(all ...extension) func(*packet) {
		return func(p *packet) { p.extensions = all }
	}
	away := f.tcp(portNode2, "S").with(extended(padding(destination, 1)))
	short := syn.with(extended(padding(destination, 1)))
	cut := short.frame()[:14+40+7]
	return []fixture{
		served("hop-by-hop options", extended(padding(hopByHop, 1))),
		served("destination options", extended(padding(destination, 4))),
		served("routing header without segments left", extended(routingHeader(2, 0))),
		served("atomic fragment", extended(fragmentHeader(0, false, 7))),
		served("six headers", extended(padding(hopByHop, 1), padding(destination, 1), routingHeader(2, 0),
			padding(destination, 1), padding(destination, 1), padding(destination, 1))),
		served("256 bytes of headers", extended(padding(hopByHop, 31), padding(destination, 1))),
		fromNode("longest headers", extended(padding(hopByHop, 31), padding(destination, 1))),
		{
			name: "row of another node", in: away.frame(), verdict: xdpTX,
			out: away.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), counts: f.received(away),
		},
		lost("seven headers", bpf.DatapathDropReasonDROP_IPV6EXTENSION, func(p *packet) {
			p.extensions = slices.Repeat([]extension{padding(destination, 1)}, 7)
		}),
		lost("264 bytes of headers", bpf.DatapathDropReasonDROP_IPV6EXTENSION, extended(padding(hopByHop, 32), padding(destination, 1))),
		lost("routing header of type 0", bpf.DatapathDropReasonDROP_SOURCE_ROUTE, extended(routingHeader(0, 0))),
		lost("routing header with segments left", bpf.DatapathDropReasonDROP_SOURCE_ROUTE, extended(routingHeader(4, 1))),
		lost("misplaced hop-by-hop options", bpf.DatapathDropReasonDROP_MALFORMED, extended(padding(destination, 1), padding(hopByHop, 1))),
		lost("two fragment headers", bpf.DatapathDropReasonDROP_MALFORMED, extended(fragmentHeader(0, true, 7), fragmentHeader(0, true, 7))),
		{name: "truncated header", in: cut, verdict: xdpDrop, counts: dropped(bpf.DatapathDropReasonDROP_MALFORMED)},
	}
}

func ipv4Options(served, fromNode func(string, func(*packet)) fixture,
	lost func(string, bpf.DatapathDropReason, func(*packet)) fixture,
) []fixture {
	options := func(all ...layers.IPv4Option) func(*packet) {
		return func(p *packet) { p.ipOptions = all }
	}
	option := func(kind, length byte, data ...byte) layers.IPv4Option {
		return layers.IPv4Option{OptionType: kind, OptionLength: length, OptionData: data}
	}
	routerAlert := option(148, 4, 0, 0)
	recordRoute := option(7, 7, 4, 0, 0, 0, 0)
	nop, end := option(1, 1), option(0, 1)
	return []fixture{
		served("router alert", options(routerAlert)),
		served("record route", options(recordRoute, end)),
		served("only padding", options(nop, nop, nop, end)),
		served("bytes after the end-of-options option", options(end, option(131, 3, 4))),
		fromNode("longest header", options(slices.Repeat([]layers.IPv4Option{routerAlert}, 10)...)),
		lost("loose source route", bpf.DatapathDropReasonDROP_SOURCE_ROUTE, options(nop, option(131, 7, 4, 9, 9, 9, 9))),
		lost("strict source route", bpf.DatapathDropReasonDROP_SOURCE_ROUTE, options(routerAlert, option(137, 3, 4), end)),
	}
}

func damagedOptions(p packet) []fixture {
	p.ipOptions = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
	var fixtures []fixture
	for name, length := range map[string]byte{"option longer than the header": 5, "option of length 0": 0, "option of length 1": 1} {
		frame := p.frame()
		frame[14+20+1] = length
		fixtures = append(fixtures, fixture{
			name: name, in: frame, verdict: xdpDrop, counts: dropped(bpf.DatapathDropReasonDROP_MALFORMED),
		})
	}
	return fixtures
}
