// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// Acceptance of nodes' packets by their key. During a rotation two keys are accepted.
func TestTunnelTag(t *testing.T) {
	w := newWorld(t)
	good := v4.tcp(portCluster, "S").arrived(v4, 0)
	taken := bpf.DatapathDropReasonDROP_NONE
	const (
		wrong    = bpf.DatapathDropReasonDROP_TUNNEL_TAG
		untagged = bpf.DatapathDropReasonDROP_TUNNEL_UNTAGGED
	)
	form := func(change func(*tunnel)) []byte { return good.with(change).frame() }
	forms := map[string][]byte{
		"key 1":     good.frame(),
		"key 2":     form(func(t *tunnel) { t.key = 2 }),
		"no tag":    form(func(t *tunnel) { t.untagged = true }),
		"key 9":     form(func(t *tunnel) { t.untagged = true }),
		"zeros":     form(func(t *tunnel) { t.untagged = true }),
		"swapped":   good.frame(),
		"other tag": good.frame(),
	}
	at := shortest + 20 + tagOffset
	// A tag of key 1 with the number of key 2, and a zero tag.
	forms["swapped"][at-2] = 0x10 + 2
	forms["zeros"][at-2] = 0x10 + 1
	forms["other tag"][at+7] ^= 1
	// The number of a key that no agent of this version uses.
	forms["key 9"][at-2] = 0x10 + 9
	type reasons = map[string]bpf.DatapathDropReason
	for _, test := range []struct {
		name     string
		required bool
		accepted []int
		want     reasons
	}{
		{"no key", false, nil, reasons{}},
		{"key 1", false, []int{1}, reasons{"zeros": wrong, "other tag": wrong}},
		{"both", false, []int{1, 2}, reasons{"zeros": wrong, "other tag": wrong, "swapped": wrong}},
		{"both required", true, []int{1, 2}, reasons{
			"zeros": wrong, "other tag": wrong, "swapped": wrong, "key 9": wrong, "no tag": untagged,
		}},
		{"key 1 retired", true, []int{2}, reasons{
			"key 1": wrong, "zeros": wrong, "other tag": wrong, "swapped": wrong, "key 9": wrong, "no tag": untagged,
		}},
		{"key 2 not known yet", true, []int{1}, reasons{
			"key 2": wrong, "zeros": wrong, "other tag": wrong, "swapped": wrong, "key 9": wrong, "no tag": untagged,
		}},
	} {
		w.trust(t, test.required, test.accepted...)
		for name, frame := range forms {
			t.Run(test.name+"/"+name, func(t *testing.T) {
				w.forget(t)
				earlier := w.tally(t)
				got := w.ingress(t, frame)
				reason := test.want[name]
				if want := map[bool]verdict{true: xdpPass, false: xdpDrop}[reason == taken]; got.verdict != want {
					t.Fatalf("verdict %v, want %v", got.verdict, want)
				}
				if reason != taken && w.tally(t).since(earlier)["drop "+itoa(reason)] != 1 {
					t.Errorf("counters increased by %v, want reason %d", w.tally(t).since(earlier), reason)
				}
			})
		}
	}
}

func itoa(reason bpf.DatapathDropReason) string { return strconv.Itoa(int(reason)) }

// A node without a key sends the option without a tag.
func TestTunnelWithoutKey(t *testing.T) {
	w := newWorld(t)
	var self bpf.DatapathSelf
	if err := w.Settings.Lookup(uint32(0), &self); err != nil {
		t.Fatal(err)
	}
	self.Flags = 0
	put(t, w.Settings, uint32(0), self)
	for _, f := range families {
		syn := f.tcp(portNode2, "S")
		want := f.tcp(portNode2, "S").arrived(v4, 2).onwards(v4.node2)
		want.ingress, want.untagged = selfID, true
		checkFrame(t, w.ingress(t, syn.frame()).frame, want.sent(uplinkMAC, node2MAC))
	}
}

// innerForms are packets whose tags cover different words.
func innerForms(f family) map[string]packet {
	forms := map[string]packet{
		"TCP":                  f.tcp(portCluster, "S"),
		"UDP":                  f.udp(portCluster),
		"first fragment":       f.udp(portCluster).with(part(0, true, 9)),
		"later fragment":       f.udp(portCluster).with(part(4, true, 9)),
		"short later fragment": f.udp(portCluster).with(part(4, false, 9)).with(func(p *packet) { p.payload = "abc" }),
	}
	if f.vip.Is4() {
		forms["options"] = f.tcp(portCluster, "S").with(func(p *packet) {
			p.ipOptions = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
		})
	} else {
		forms["extension header"] = f.tcp(portCluster, "S").with(func(p *packet) {
			p.extensions = []extension{{60, []byte{0, 1, 4, 0, 0, 0, 0}}}
		})
	}
	return forms
}

// covered returns the bytes of an encapsulated frame that its tag covers, and those of the tag and its
// number.
func covered(outer, inner family, p packet) (places []int) {
	add := func(from, length int) {
		for i := range length {
			places = append(places, from+i)
		}
	}
	udp := shortest + 20
	if outer.vip.Is6() {
		udp += 20
	}
	add(udp+pathOffset, 8)
	add(udp+tagOffset-2, 1)
	add(udp+tagOffset, 8)
	ip := udp + tunnelLength + highBytes()
	if longIDs {
		// The high bits of the chooser and the chain.
		add(ip-1, 1)
	}
	l4 := ip + 40
	if inner.vip.Is4() {
		l4 = ip + 20 + 4*len(p.ipOptions)
		add(ip+4, 4)
		add(ip+9, 1)
		add(ip+12, 8)
	} else {
		add(ip+6, 2)
		add(ip+8, 32)
	}
	if length := len(p.ip()) - (l4 - ip); length >= 8 {
		add(l4, 8)
	}
	return places
}

// A change of any bit covered by the tag causes a drop.
func TestTunnelTagCovers(t *testing.T) {
	w := newWorld(t)
	w.trust(t, true, 1, 2)
	for _, outer := range families {
		for _, inner := range families {
			for name, p := range innerForms(inner) {
				t.Run(inner.name+" in "+outer.name+"/"+name, func(t *testing.T) {
					frame := p.arrived(outer, 0).frame()
					for _, place := range covered(outer, inner, p) {
						for bit := range 8 {
							changed := slices.Clone(frame)
							changed[place] ^= 1 << bit
							w.checkForged(t, changed)
						}
					}
					for bit := range highBytes() / 2 {
						changed := slices.Clone(frame)
						changed[outer.outerUDP()+tunnelLength+2] ^= 1 << bit
						w.checkForged(t, changed)
					}
				})
			}
		}
	}
}

// A packet of one node is not accepted as another's, nor one for this node by another.
func TestTunnelTagCoversOuterAddresses(t *testing.T) {
	w := newWorld(t)
	w.trust(t, true, 1, 2)
	for _, f := range families {
		good := f.tcp(portCluster, "S").arrived(f, 0)
		put(t, w.NodeAddresses, address(f.other), uint32(nodeID(4)))
		forged := good.withoutTag()
		copy(forged, good.ip())
		from, length := 12, 4
		if f.vip.Is6() {
			from, length = 8, 16
		}
		copy(forged[from:from+length], f.other.AsSlice())
		w.checkForged(t, ethernet(routerMAC, uplinkMAC, f.vip.Is4(), forged))
		if f.vip.Is4() {
			w.putSelf(t, f.other, v6.self)
		} else {
			w.putSelf(t, v4.self, f.other)
		}
		forged = good.ip()
		copy(forged[from+length:from+2*length], f.other.AsSlice())
		w.checkForged(t, ethernet(routerMAC, uplinkMAC, f.vip.Is4(), forged))
		w.putSelf(t, v4.self, v6.self)
		if got := w.ingress(t, good.frame()); got.verdict != xdpPass {
			t.Errorf("%s: valid packet: verdict %v, want %v", f.name, got.verdict, xdpPass)
		}
	}
}

func (w *world) checkForged(t *testing.T, frame []byte) {
	t.Helper()
	count := func() uint64 {
		return sum(t, w.DropCounts, uint32(bpf.DatapathDropReasonDROP_TUNNEL_TAG)) +
			sum(t, w.DropCounts, uint32(bpf.DatapathDropReasonDROP_TUNNEL_UNTAGGED)) +
			sum(t, w.DropCounts, uint32(bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED))
	}
	before := count()
	if got := w.ingress(t, frame); got.verdict != xdpDrop || count() != before+1 {
		t.Fatalf("verdict %v, %d packets counted as forged, for\n%s", got.verdict, count()-before, show(frame))
	}
}

// forger creates encapsulated packets without the key: all covered fields are random.
type forger struct {
	random       *rand.Rand
	outer, inner family
	frame        []byte
}

func newForger(outer, inner family, seed uint64) *forger {
	good := inner.tcp(portCluster, "S").arrived(outer, 0)
	good.untagged = true
	return &forger{random: rand.New(rand.NewPCG(13, seed)), outer: outer, inner: inner, frame: good.frame()}
}

func (f family) outerUDP() int {
	if f.vip.Is4() {
		return shortest + 20
	}
	return shortest + 40
}

// next returns the next packet with the flags, with varying sources and ports, and tags that are random, of
// other packets or absent.
func (f *forger) next(flags uint8) []byte {
	udp := f.outer.outerUDP()
	path := f.random.Uint64()&^15 | uint64(flags)
	// Mostly of existing nodes.
	if flags&flagRedirect != 0 {
		path = path&(1<<40-1)&^15 | uint64(flags) | selfID<<52 | 2<<40
	}
	binary.BigEndian.PutUint64(f.frame[udp+pathOffset:], path)
	f.frame[udp+tagOffset-2] = 0x10 + byte(f.random.Uint32N(5))
	if f.random.Uint32N(4) != 0 {
		binary.LittleEndian.PutUint64(f.frame[udp+tagOffset:], f.random.Uint64())
	}
	ip := f.frame[udp+tunnelLength+highBytes():]
	if f.inner.vip.Is4() {
		binary.BigEndian.PutUint32(ip[12:], f.random.Uint32())
		binary.BigEndian.PutUint32(ip[20:], f.random.Uint32()&^0xffff|uint32(portCluster))
		ip[33] = byte(f.random.Uint32())
	} else {
		binary.BigEndian.PutUint64(ip[16:], f.random.Uint64())
		binary.BigEndian.PutUint32(ip[40:], f.random.Uint32()&^0xffff|uint32(portCluster))
		ip[53] = byte(f.random.Uint32())
	}
	return f.frame
}

// No packet forged without the key is accepted, with any path flags. It creates no flow and no override.
func TestFloodForgedTunnel(t *testing.T) {
	w := newWorld(t)
	w.trust(t, true, 1)
	n := floodPackets(t)
	for _, outer := range families {
		for _, inner := range families {
			t.Run(inner.name+" in "+outer.name, func(t *testing.T) {
				w.forget(t)
				earlier := w.tally(t)
				f := newForger(outer, inner, 1)
				run := ebpf.RunOptions{
					Data: f.frame, DataOut: make([]byte, len(f.frame)+256),
					Context: xdpContext{DataEnd: uint32(len(f.frame)), IngressIfindex: uint32(w.uplink)},
				}
				for i := range n {
					run.Data = f.next(uint8(i % 16))
					run.DataOut = run.DataOut[:cap(run.DataOut)]
					code, err := w.Ingress.Run(&run)
					if err != nil {
						t.Fatal(err)
					}
					if verdict(code) != xdpDrop {
						t.Fatalf("verdict %v for\n%s", verdict(code), show(run.Data))
					}
				}
				w.checkNothingTaken(t, earlier, uint64(n))
			})
		}
	}
}

func (w *world) checkNothingTaken(t *testing.T, earlier tally, n uint64) {
	t.Helper()
	counted := w.tally(t).since(earlier)
	var forged uint64
	for _, reason := range []bpf.DatapathDropReason{
		bpf.DatapathDropReasonDROP_TUNNEL_TAG, bpf.DatapathDropReasonDROP_TUNNEL_UNTAGGED,
	} {
		forged += counted["drop "+itoa(reason)]
		delete(counted, "drop "+itoa(reason))
	}
	if forged != n || len(counted) > 0 {
		t.Errorf("%d of %d packets dropped as forged, other counters %v, want no others", forged, n, counted)
	}
	for _, m := range w.flowMaps() {
		if key, err := m.NextKeyBytes(nil); err != nil || key != nil {
			t.Errorf("map %v has the entry %x, error %v", m, key, err)
		}
	}
	if n, err := w.halfOpen().Count(); err != nil || n != 0 {
		t.Errorf("%d half-open flows, error %v", n, err)
	}
	for index, bucket := range entries[uint32, bpf.DatapathOverrideBucket](t, w.Overrides) {
		if bucket != (bpf.DatapathOverrideBucket{}) {
			t.Errorf("override bucket %d is not empty", index)
		}
	}
}

// No packet forged by a pod or process of the node leaves it, with any path flags and tag, even with the
// right mark.
func TestFloodForgedHere(t *testing.T) {
	w := newWorld(t)
	w.fence(t)
	n := floodPackets(t)
	const pod = 77
	attackers := map[string]skbOrigin{
		"pod":     {Ifindex: uint32(w.uplink), IngressIfindex: pod},
		"process": {Ifindex: uint32(w.uplink), Mark: nodeMark},
	}
	for _, f := range families {
		for name, origin := range attackers {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				forger := newForger(f, f, 2)
				// From this node to another node.
				l3 := forger.frame[shortest:]
				if f.vip.Is4() {
					swap(l3[12:20])
				} else {
					swap(l3[8:40])
				}
				run := ebpf.RunOptions{Data: forger.frame, DataOut: make([]byte, len(forger.frame)+256), Context: origin}
				before := sum(t, w.DropCounts, uint32(bpf.DatapathDropReasonDROP_TUNNEL_EGRESS))
				for i := range n {
					run.Data = forger.next(uint8(i % 16))
					run.DataOut = run.DataOut[:cap(run.DataOut)]
					code, err := w.Egress.Run(&run)
					if err != nil {
						t.Fatal(err)
					}
					if int32(code) != tcxDrop {
						t.Fatalf("verdict %d for\n%s", int32(code), show(run.Data))
					}
				}
				if got := sum(t, w.DropCounts, uint32(bpf.DatapathDropReasonDROP_TUNNEL_EGRESS)) - before; got != uint64(n) {
					t.Errorf("drop counter increased by %d, want %d", got, n)
				}
			})
		}
	}
}
