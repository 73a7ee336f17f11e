// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

const (
	nodeMark  = 0x51ed0042
	geneveUDP = 6081

	oneTag   = 0x81000064
	otherTag = 0x88a80007
)

// fence sets the node's mark and enables the check at egress.
func (w *world) fence(t testing.TB) {
	t.Helper()
	put(t, w.TunnelPolicies, uint32(0), bpf.DatapathTunnelPolicy{Flags: uint32(bpf.DatapathTunnelPolicyFlagPOLICY_EGRESS), Mark: nodeMark})
}

// leaving is a frame to the uplink with its kernel metadata.
type leaving struct {
	name  string
	frame []byte
	mark  uint32
	// from is the ingress interface; zero if a process of the node sent it.
	from uint32
	// segment is the payload size of each packet after segmentation; zero means unsegmented.
	segment uint32
	dropped bool
}

// skbOrigin is struct __sk_buff, as far as test runs accept it.
type skbOrigin struct {
	_              [8]byte
	Mark           uint32
	_              [24]byte
	IngressIfindex uint32
	Ifindex        uint32
	_              [120]byte
	GsoSegs        uint32
	_              [8]byte
	GsoSize        uint32
	_              [12]byte
}

// datagram is a UDP socket's packet after masquerading by the CNI.
func datagram(f family, payload []byte) packet {
	return packet{
		from: netip.AddrPortFrom(f.self, 50000), to: netip.AddrPortFrom(f.node2, geneveUDP),
		protocol: layers.IPProtocolUDP, payload: string(payload), source: uplinkMAC, destination: node2MAC,
	}
}

// Only packets encapsulated by its programs leave the node with our VNI, in any encapsulation.
func TestEgressFence(t *testing.T) {
	w := newWorld(t)
	w.fence(t)
	for _, f := range families {
		for _, l := range forgeries(f, uint32(w.uplink)) {
			t.Run(f.name+"/"+l.name, func(t *testing.T) { w.checkLeaving(t, l) })
		}
	}
	// Packets of programs without a mark must not be dropped.
	put(t, w.TunnelPolicies, uint32(0), bpf.DatapathTunnelPolicy{Mark: nodeMark})
	for _, f := range families {
		open := leaving{name: "fence not closed yet", frame: datagram(f, f.tcp(portCluster, "S").arrived(f, 0).geneveAndInner()).frame()}
		t.Run(f.name+"/"+open.name, func(t *testing.T) { w.checkLeaving(t, open) })
	}
}

func (t tunnel) geneveAndInner() []byte { return append(t.geneve(), t.inner.ip()...) }

func forgeries(f family, uplink uint32) []leaving {
	forged := f.tcp(portCluster, "S").arrived(f, 0)
	payload := forged.geneveAndInner()
	others := forged.with(func(t *tunnel) { t.vni = 7 }).geneveAndInner()
	plain := datagram(f, payload)
	const pod = 77
	var all []leaving
	for flags := range uint8(16) {
		flagged := forged.with(func(t *tunnel) { t.flags = flags }).geneveAndInner()
		all = append(all, leaving{name: "from a pod, flags", frame: datagram(f, flagged).frame(), from: pod, dropped: true})
	}
	// Only the second packet of two has our VNI.
	hidden := append(make([]byte, len(payload)), payload...)
	elsewhere := plain.with(func(p *packet) { p.to = netip.AddrPortFrom(f.node2, 6082) })
	all = append(all,
		leaving{name: "from a process of the node", frame: plain.frame(), dropped: true},
		leaving{name: "from a process with the mark", frame: plain.frame(), mark: nodeMark, dropped: true},
		leaving{name: "from a pod with a different mark", frame: plain.frame(), mark: nodeMark + 1, from: pod, dropped: true},
		leaving{name: "in transit", frame: plain.frame(), from: uplink, dropped: true},
		leaving{name: "handed over", frame: plain.frame(), mark: nodeMark, from: uplink},
		leaving{name: "another VNI", frame: datagram(f, others).frame(), from: pod},
		leaving{name: "another port", frame: elsewhere.frame(), from: pod},
		leaving{name: "empty payload", frame: datagram(f, nil).frame(), from: pod},
		leaving{name: "in the second of two packets", frame: datagram(f, hidden).frame(), from: pod, segment: uint32(len(payload)), dropped: true},
		leaving{name: "in neither of two packets", frame: datagram(f, slices.Repeat(others, 2)).frame(), from: pod, segment: uint32(len(others))},
		leaving{name: "behind a tag", frame: tagged(plain.frame(), oneTag), from: pod, dropped: true},
		leaving{name: "behind two tags", frame: tagged(plain.frame(), oneTag, otherTag), from: pod, dropped: true},
		leaving{name: "behind a tag, another VNI", frame: tagged(datagram(f, others).frame(), oneTag), from: pod},
	)
	if f.vip.Is4() {
		first := plain.with(part(0, true, 9))
		tiny := datagram(f, nil).with(part(0, true, 9))
		return append(all,
			leaving{name: "with an option", frame: plain.with(func(p *packet) {
				p.ipOptions = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
			}).frame(), from: pod, dropped: true},
			leaving{name: "a first fragment", frame: first.frame(), from: pod, dropped: true},
			leaving{name: "a first fragment with the mark", frame: first.frame(), from: uplink, mark: nodeMark, dropped: true},
			leaving{name: "a first fragment too short for the VNI", frame: tiny.frame(), from: pod, dropped: true},
			leaving{name: "a first fragment of another VNI", frame: datagram(f, others).with(part(0, true, 9)).frame(), from: pod},
			leaving{name: "a later fragment", frame: plain.with(part(3, false, 9)).frame(), from: pod},
		)
	}
	extended := func(extensions ...extension) []byte {
		return plain.with(func(p *packet) { p.extensions = extensions }).frame()
	}
	return append(all,
		leaving{name: "behind an extension header", frame: extended(padding(destination, 3)), from: pod, dropped: true},
		leaving{name: "behind eight extension headers", frame: extended(slices.Repeat([]extension{padding(destination, 1)}, 8)...), from: pod, dropped: true},
		leaving{name: "behind an extension header and a tag", frame: tagged(extended(padding(hopByHop, 1)), oneTag), from: pod, dropped: true},
		leaving{name: "a first fragment", frame: extended(fragmentHeader(0, true, 9)), from: pod, dropped: true},
		leaving{name: "a first fragment, then an extension header", frame: extended(fragmentHeader(0, true, 9), padding(destination, 1)), from: pod, dropped: true},
		leaving{name: "an atomic fragment", frame: extended(fragmentHeader(0, false, 9)), from: pod, dropped: true},
	)
}

func (w *world) checkLeaving(t *testing.T, l leaving) {
	t.Helper()
	w.forget(t)
	earlier := w.tally(t)
	context := skbOrigin{Mark: l.mark, IngressIfindex: l.from, Ifindex: uint32(w.uplink)}
	if l.segment != 0 {
		context.GsoSize, context.GsoSegs = l.segment, 2
	}
	run := &ebpf.RunOptions{Data: l.frame, DataOut: make([]byte, len(l.frame)+256), Context: context}
	code, err := w.Egress.Run(run)
	if err != nil {
		t.Fatalf("run egress: %v", err)
	}
	verdict, counts := int32(tcxNext), tally{}
	if l.dropped {
		verdict, counts = tcxDrop, dropped(bpf.DatapathDropReasonDROP_TUNNEL_EGRESS)
	} else {
		checkFrame(t, run.DataOut, l.frame)
	}
	if int32(code) != verdict {
		t.Errorf("verdict %d, want %d, for\n%s", int32(code), verdict, gopacket.NewPacket(l.frame, layers.LayerTypeEthernet, gopacket.Default))
	}
	if got := w.tally(t).since(earlier); !maps.Equal(got, counts) {
		t.Errorf("counters increased by %v, want %v", got, counts)
	}
}

// Packets of a node are accepted only on its ingress interfaces.
func TestNodeUplinks(t *testing.T) {
	w := newWorld(t)
	// Above the index of any interface in the namespace.
	others := []int{100_001, 100_002, 100_003, 100_004, 100_005, 100_006}
	for _, f := range families {
		syn := f.tcp(portCluster, "S")
		in := syn.arrived(f, 0).frame()
		for name, test := range map[string]struct {
			by    []int
			taken bool
		}{
			"unknown node":           {nil, true},
			"this node":              {[]int{w.uplink}, true},
			"this node last":         {slices.Concat([]int{w.second}, others, []int{w.uplink}), true},
			"a different node":       {[]int{w.second}, false},
			"eight other nodes":      {append(slices.Concat([]int{w.second}, others), 100_007), false},
			"a different node twice": {[]int{w.second, w.third}, false},
		} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				var interfaces bpf.DatapathIngressInterfaces
				for i, index := range test.by {
					interfaces.Ifindex[i] = uint32(index)
				}
				put(t, w.NodeUplinks, uint32(nodeID(2)), interfaces)
				fixture := fixture{in: in, verdict: xdpPass, out: delivered(syn, f.pods[0]), counts: f.opened(portCluster)}
				if !test.taken {
					fixture.verdict, fixture.out, fixture.counts = xdpDrop, nil, dropped(bpf.DatapathDropReasonDROP_TUNNEL_UPLINK)
				}
				w.check(t, fixture)
			})
		}
		put(t, w.NodeUplinks, uint32(nodeID(2)), bpf.DatapathIngressInterfaces{})
	}
}

// Fragments and outer headers with options are no tunnel packets.
func TestOuterForm(t *testing.T) {
	w := newWorld(t)
	syn := v4.tcp(portCluster, "S")
	good := syn.arrived(v4, 0)
	good.untagged = true
	outer := func(vni uint32, change func(*packet)) []byte {
		p := packet{
			from: netip.AddrPortFrom(v4.node2, 50000), to: netip.AddrPortFrom(v4.self, geneveUDP), protocol: layers.IPProtocolUDP,
			payload: string(good.with(func(t *tunnel) { t.vni = vni }).geneveAndInner()),
		}
		change(&p)
		return p.frame()
	}
	option := func(p *packet) {
		p.ipOptions = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
	}
	malformed := dropped(bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED)
	// A later fragment contains arbitrary data in place of the headers.
	later := packet{
		from: netip.AddrPortFrom(v4.node2, 50000), to: netip.AddrPortFrom(v4.self, geneveUDP), protocol: layers.IPProtocolUDP,
		payload: string(good.ip()[20:]),
	}.with(part(1, false, 9))
	for _, fixture := range []fixture{
		{name: "whole", in: outer(0, func(*packet) {}), verdict: xdpPass, out: delivered(syn, v4.pods[0]), counts: v4.opened(portCluster)},
		{name: "options", in: outer(0, option), verdict: xdpDrop, counts: malformed},
		{name: "options, another VNI", in: outer(7, option), verdict: xdpPass},
		{name: "options behind a tag", in: tagged(outer(0, option), vlanTag), verdict: xdpDrop, counts: malformed},
		{name: "first fragment", in: outer(0, part(0, true, 9)), verdict: xdpDrop, counts: malformed},
		{name: "first fragment, another VNI", in: outer(7, part(0, true, 9)), verdict: xdpPass},
		{name: "later fragment", before: [][]byte{outer(0, part(0, true, 9))}, in: later.frame(), verdict: xdpPass},
	} {
		t.Run(fixture.name, func(t *testing.T) { w.check(t, fixture) })
	}
}
