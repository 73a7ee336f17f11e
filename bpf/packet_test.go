// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"cmp"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Packets as data: gopacket computes frames and checksums from these fields only.

var (
	uplinkMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 0x11}
	otherMAC    = net.HardwareAddr{2, 0, 0, 0, 0, 0x12}
	routerMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 0x01}
	node2MAC    = net.HardwareAddr{2, 0, 0, 0, 0, 0x22}
	node3MAC    = net.HardwareAddr{2, 0, 0, 0, 0, 0x33}
	secondMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 0x44}
	neighborMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x55}
)

// packet is an IP packet with TCP, UDP, SCTP, or another protocol without header.
type packet struct {
	from, to netip.AddrPort
	protocol layers.IPProtocol
	// flags are the TCP flags S, A, F, R.
	flags string
	// sequence and acknowledged default to 1000 and 2000.
	sequence, acknowledged uint32
	payload                string
	ttl                    uint8
	tos                    uint8
	// ipOptions are those of IPv4 (four bytes each), options those of TCP.
	ipOptions  []layers.IPv4Option
	tcpOptions []layers.TCPOption
	// fragment is the IPv4 offset in units of 8 bytes; more is MF.
	fragment uint16
	more     bool
	// fragmentID is the IPv4 identification; zero means any.
	fragmentID uint16
	// shown is the number of bytes of transport header and payload; zero means all.
	shown      int
	extensions []extension
	divisible  bool
	// made marks packets of the programs: without identification and flow label.
	made         bool
	tcp          func(*layers.TCP)
	zeroChecksum bool
	// source and destination default to the router's and the uplink's MAC address.
	source, destination net.HardwareAddr
}

// extension is an IPv6 extension header; body follows the next header's number.
type extension struct {
	kind layers.IPProtocol
	body []byte
}

func (p packet) is4() bool { return p.to.Addr().Is4() }

func (p packet) ip() []byte {
	network := p.network()
	parts := []gopacket.SerializableLayer{network.(gopacket.SerializableLayer)}
	for i, e := range p.extensions {
		next := p.protocol
		if i+1 < len(p.extensions) {
			next = p.extensions[i+1].kind
		}
		parts = append(parts, gopacket.Payload(append([]byte{byte(next)}, e.body...)))
	}
	if p.fragment == 0 {
		parts = append(parts, p.transport(network)...)
	}
	parts = append(parts, gopacket.Payload(p.payload))
	if p.shown != 0 {
		transport := serialize(parts[len(parts)-2:]...)
		parts = append(parts[:len(parts)-2], gopacket.Payload(transport[:p.shown]))
	}
	return serialize(parts...)
}

func (p packet) network() gopacket.NetworkLayer {
	protocol := p.protocol
	if len(p.extensions) > 0 {
		protocol = p.extensions[0].kind
	}
	ttl := p.ttl
	if ttl == 0 {
		ttl = 63
	}
	id, label := uint16(4242), uint32(0xabcde)
	if p.made {
		id, label = 0, 0
	}
	if p.fragmentID != 0 {
		id = p.fragmentID
	}
	if p.is4() {
		flags := layers.IPv4DontFragment
		if p.more {
			flags = layers.IPv4MoreFragments
		} else if p.fragment != 0 || p.divisible {
			flags = 0
		}
		return &layers.IPv4{
			Version: 4, TOS: p.tos, Id: id, Flags: flags, FragOffset: p.fragment, TTL: ttl, Protocol: protocol,
			SrcIP: p.from.Addr().AsSlice(), DstIP: p.to.Addr().AsSlice(), Options: p.ipOptions,
		}
	}
	return &layers.IPv6{
		Version: 6, TrafficClass: p.tos, FlowLabel: label, NextHeader: protocol, HopLimit: ttl,
		SrcIP: p.from.Addr().AsSlice(), DstIP: p.to.Addr().AsSlice(),
	}
}

func (p packet) transport(network gopacket.NetworkLayer) []gopacket.SerializableLayer {
	switch p.protocol {
	case layers.IPProtocolTCP:
		tcp := &layers.TCP{
			SrcPort: layers.TCPPort(p.from.Port()), DstPort: layers.TCPPort(p.to.Port()),
			Seq: cmp.Or(p.sequence, 1000), Ack: cmp.Or(p.acknowledged, 2000), Window: 500,
			SYN: strings.Contains(p.flags, "S"), ACK: strings.Contains(p.flags, "A"),
			FIN: strings.Contains(p.flags, "F"), RST: strings.Contains(p.flags, "R"),
			Options: p.tcpOptions,
		}
		if p.tcp != nil {
			p.tcp(tcp)
		}
		must(tcp.SetNetworkLayerForChecksum(network))
		return []gopacket.SerializableLayer{tcp}
	case layers.IPProtocolUDP:
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.from.Port()), DstPort: layers.UDPPort(p.to.Port())}
		if p.zeroChecksum {
			length := 8 + len(p.payload)
			return []gopacket.SerializableLayer{gopacket.Payload([]byte{
				byte(p.from.Port() >> 8), byte(p.from.Port()), byte(p.to.Port() >> 8), byte(p.to.Port()),
				byte(length >> 8), byte(length), 0, 0,
			})}
		}
		must(udp.SetNetworkLayerForChecksum(network))
		return []gopacket.SerializableLayer{udp}
	case layers.IPProtocolSCTP:
		return []gopacket.SerializableLayer{
			&layers.SCTP{SrcPort: layers.SCTPPort(p.from.Port()), DstPort: layers.SCTPPort(p.to.Port()), VerificationTag: 7},
			gopacket.Payload([]byte{sctpChunk(p.flags), 0, 0, byte(4 + len(p.payload))}),
		}
	default:
		return nil
	}
}

// sctpChunk returns the type of the first chunk: INIT or INIT ACK for S and SA, else DATA.
func sctpChunk(flags string) byte {
	return map[string]byte{"S": 1, "SA": 2}[flags]
}

func (p packet) frame() []byte {
	source, destination := p.source, p.destination
	if source == nil {
		source = routerMAC
	}
	if destination == nil {
		destination = uplinkMAC
	}
	return ethernet(source, destination, p.is4(), p.ip())
}

func ethernet(source, destination net.HardwareAddr, is4 bool, ip []byte) []byte {
	kind := layers.EthernetTypeIPv6
	if is4 {
		kind = layers.EthernetTypeIPv4
	}
	// Built manually, because gopacket would pad to the minimum length.
	frame := append(append([]byte{}, destination...), source...)
	return append(append(frame, byte(kind>>8), byte(kind)), ip...)
}

func serialize(parts ...gopacket.SerializableLayer) []byte {
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	must(gopacket.SerializeLayers(buffer, options, parts...))
	return buffer.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

type tunnel struct {
	from, to netip.Addr
	inner    packet
	ingress  uint16
	chooser  uint16
	chain    [3]uint16
	flags    uint8
	// zones is the zone of the path, relative to that of the ingress node.
	zones uint8
	tos   uint8
	// port is the outer source port; zero means the hash of the inner flow.
	port uint16
	// flow is a packet of the related flow, if not the inner packet's own.
	flow *packet
	// key is the number of the tag's key; zero means testKey.
	key int
	// untagged sends the option without a tag, like a node without key.
	untagged bool
	// The other fields deviate from packets of nodes.
	vni, class   uint32
	version      uint8
	extraOptions int
	noOption     bool
	noTag        bool
	protocol     layers.EthernetType
	ipOptions    []layers.IPv4Option
}

const (
	flagRanked   = 1
	flagLookup   = 2
	flagOverride = 4
	flagRedirect = 8
)

// geneve is encoded manually, because gopacket's Geneve only decodes.
func (t tunnel) geneve() []byte {
	vni, class, protocol := uint32(0x4d4c52), uint32(0xff4d), layers.EthernetTypeIPv6
	if t.inner.is4() {
		protocol = layers.EthernetTypeIPv4
	}
	if t.vni != 0 {
		vni = t.vni
	}
	if t.class != 0 {
		class = t.class
	}
	if t.protocol != 0 {
		protocol = t.protocol
	}
	path, high := uint64(t.flags), uint32(0)
	for i, id := range []uint16{t.chain[2], t.chain[1], t.chain[0], t.chooser, t.ingress} {
		path |= uint64(id&0xfff) << (4 + 12*i)
		high |= uint32(nodeID(id)>>12) << (2 * i)
	}
	more := 0
	if high != 0 {
		more = 1
	}
	words := 6 + more + t.extraOptions
	if t.noTag {
		words = 3 + t.extraOptions
	}
	if t.noOption {
		words = 0
	}
	out := []byte{
		t.version<<6 | byte(words), 0x40, byte(protocol >> 8), byte(protocol),
		byte(vni >> 16), byte(vni >> 8), byte(vni), 0,
	}
	if t.noOption {
		return out
	}
	out = append(out, byte(class>>8), byte(class), 0x82+t.zones, 2)
	out = binary.BigEndian.AppendUint64(out, path)
	if !t.noTag {
		out = append(out, 0xff, 0x4d, 0x10+byte(t.keyNumber()), byte(2+more))
		out = append(out, make([]byte, 8)...)
		if more != 0 {
			out = binary.BigEndian.AppendUint32(out, high)
		}
	}
	return append(out, make([]byte, 4*t.extraOptions)...)
}

func (t tunnel) keyNumber() int {
	if t.untagged {
		return 0
	}
	return cmp.Or(t.key, testKey)
}

func (t tunnel) ip() []byte {
	ip := t.withoutTag()
	header := 20
	if !t.to.Is4() {
		header = 40
	}
	if t.noTag || t.untagged || t.noOption || len(t.ipOptions) > 0 {
		return ip
	}
	copy(ip[header+tagOffset:], tag(t.keyNumber(), ip))
	return ip
}

func (t tunnel) withoutTag() []byte {
	payload := append(t.geneve(), t.inner.ip()...)
	flow := t.inner
	if t.flow != nil {
		flow = *t.flow
	}
	node, _ := flowHash(flow)
	port := 49152 + uint16(node&0x3fff)
	if t.port != 0 {
		port = t.port
	}
	udp := []byte{byte(port >> 8), byte(port), 6081 >> 8, 6081 & 0xff, byte((8 + len(payload)) >> 8), byte(8 + len(payload)), 0, 0}
	payload = append(udp, payload...)
	if t.to.Is4() {
		return serialize(&layers.IPv4{
			Version: 4, TOS: t.tos, Flags: layers.IPv4DontFragment, TTL: 64, Protocol: layers.IPProtocolUDP,
			SrcIP: t.from.AsSlice(), DstIP: t.to.AsSlice(), Options: t.ipOptions,
		}, gopacket.Payload(payload))
	}
	return serialize(&layers.IPv6{
		Version: 6, TrafficClass: t.tos, FlowLabel: node & 0xfffff, NextHeader: layers.IPProtocolUDP, HopLimit: 64,
		SrcIP: t.from.AsSlice(), DstIP: t.to.AsSlice(),
	}, gopacket.Payload(payload))
}

func (t tunnel) frame() []byte {
	return ethernet(routerMAC, uplinkMAC, t.to.Is4(), t.ip())
}

func (t tunnel) sent(source, destination net.HardwareAddr) []byte {
	return ethernet(source, destination, t.to.Is4(), t.ip())
}
