// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

type fixture struct {
	name string
	// given modifies the world; the test restores only flows and endpoints.
	given func(t *testing.T, w *world)
	// before are frames received earlier, replies frames sent afterwards.
	before  [][]byte
	replies [][]byte
	in      []byte
	verdict verdict
	// out is the resulting frame; nil means unchanged.
	out  []byte
	note []byte
	// handed is true if the metadata requests the ingress interface for transmission.
	handed bool
	counts tally
}

func (w *world) check(t *testing.T, fixture fixture) {
	t.Helper()
	w.forget(t)
	for _, f := range families {
		w.pointTo(t, f, 0)
	}
	if fixture.given != nil {
		fixture.given(t, w)
	}
	if fixture.handed {
		fixture.note = handoverNote(wayBack)
	}
	for _, frame := range fixture.before {
		w.ingress(t, frame)
	}
	for _, frame := range fixture.replies {
		w.egress(t, frame)
	}
	w.checkTrace(t, fixture)
	earlier := w.tally(t)
	got := w.ingress(t, fixture.in)
	if got.verdict != fixture.verdict {
		t.Errorf("verdict %v, want %v", got.verdict, fixture.verdict)
	}
	if !bytes.Equal(got.note, fixture.note) {
		t.Errorf("metadata %x, want %x", got.note, fixture.note)
	}
	if got.verdict != xdpDrop {
		want := fixture.out
		if want == nil {
			want = fixture.in
		}
		checkFrame(t, got.frame, want)
	}
	want := fixture.counts
	if want == nil {
		want = tally{}
	}
	if counts := w.tally(t).since(earlier); !maps.Equal(counts, want) {
		t.Errorf("counters increased by %v, want %v", counts, want)
	}
}

func join(all ...tally) tally {
	total := tally{}
	for _, one := range all {
		for name, n := range one {
			total[name] += n
		}
	}
	return total
}

func dropped(reason bpf.DatapathDropReason) tally {
	return tally{dropName(reason): 1}
}

func dropName(r bpf.DatapathDropReason) string { return fmt.Sprintf("drop %d", r) }

func eventName(e bpf.DatapathEvent) string { return fmt.Sprintf("event %d", e) }

func event(e bpf.DatapathEvent) tally { return tally{eventName(e): 1} }

// received returns the counters of a packet on the node selected by the router.
func (f family) received(p packet) tally {
	name := fmt.Sprintf("%s port %d ", f.name, p.to.Port())
	return tally{name + "packets": 1, name + "bytes": uint64(len(p.ip()))}
}

func (f family) opened(port uint16) tally {
	return tally{fmt.Sprintf("%s port %d connections", f.name, port): 1}
}

func (f family) tcp(port uint16, flags string) packet {
	return packet{from: f.client, to: f.to(port), protocol: layers.IPProtocolTCP, flags: flags, payload: "GET /"}
}

func (f family) udp(port uint16) packet {
	return packet{from: f.client, to: f.to(port), protocol: layers.IPProtocolUDP, payload: "query"}
}

func delivered(p packet, pod netip.AddrPort) []byte {
	p.to = pod
	return p.frame()
}

// answer returns the endpoint's reply. Client and endpoint acknowledge each other's packets.
func answer(p packet, pod netip.AddrPort, flags string) packet {
	sequence := uint32(2000)
	if strings.Contains(flags, "S") {
		sequence--
	}
	return packet{
		from: pod, to: p.from, protocol: p.protocol, flags: flags, payload: "200",
		sequence: sequence, acknowledged: 1000,
		source: uplinkMAC, destination: routerMAC,
	}
}

// taking acknowledges all of the client's packet, including a FIN.
func (p packet) taking(of packet) packet {
	p.acknowledged = cmp.Or(of.sequence, 1000) + uint32(len(of.payload))
	if strings.Contains(of.flags, "F") {
		p.acknowledged++
	}
	return p
}

// play sends packets: those of an endpoint by egress, all others by ingress.
func (w *world) play(t testing.TB, packets ...packet) {
	t.Helper()
	for _, p := range packets {
		if slices.Contains(v4.pods[:], p.from) || slices.Contains(v6.pods[:], p.from) {
			w.egress(t, p.frame())
		} else {
			w.ingress(t, p.frame())
		}
	}
}

// establish establishes the flow of a packet: by a handshake, or a request, a reply and a second request.
func (w *world) establish(t testing.TB, p packet, pod netip.AddrPort) {
	t.Helper()
	first, reply, second := "S", "SA", "A"
	if p.protocol == layers.IPProtocolUDP {
		first, reply, second = "", "", ""
	}
	p.flags = first
	w.play(t, p, answer(p, pod, reply))
	p.flags = second
	w.play(t, p)
}

// tunnelled returns the packet encapsulated by this node, over IPv4 if both nodes have it.
func (p packet) tunnelled(to netip.Addr, chooser uint16, chain ...uint16) tunnel {
	t := tunnel{from: v4.self, to: to, inner: p, ingress: selfID, chooser: chooser, tos: p.tos}
	if to.Is6() {
		t.from = v6.self
	}
	copy(t.chain[:], chain)
	return t
}

// arrived returns the packet as sent to this node by its ingress node 2 over the outer family.
func (p packet) arrived(outer family, chooser uint16, chain ...uint16) tunnel {
	t := tunnel{from: outer.node2, to: outer.self, inner: p, ingress: 2, chooser: chooser}
	copy(t.chain[:], chain)
	return t
}

func (p packet) with(change func(*packet)) packet {
	change(&p)
	return p
}

func (t tunnel) onwards(to netip.Addr, chain ...uint16) tunnel {
	t.from, t.to, t.tos = v4.self, to, t.inner.tos
	if to.Is6() {
		t.from = v6.self
	}
	t.chain = [3]uint16{}
	copy(t.chain[:], chain)
	return t
}

func (t tunnel) with(change func(*tunnel)) tunnel {
	change(&t)
	return t
}
