// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

// allOverQuota sets the quotas of new worlds to zero.
var allOverQuota bool

// The handling of packets does not depend on the table of their flow: the tests give equal results with all
// VIPs over quota.
func TestOverQuota(t *testing.T) {
	allOverQuota = true
	defer func() { allOverQuota = false }()
	for name, test := range map[string]func(*testing.T){
		"ingress": TestIngress, "egress": TestEgress, "validation": TestValidation, "SCTP": TestSCTP,
		"ICMP": TestICMPErrors, "evicted flow": TestFlowDigest, "stale": TestStaleConnection,
		"questions": TestQueriesThroughTwoFrontends, "ports": TestPortIsUsedForTwoFrontendsInTurn, "handshake": TestHandshakeInFlood,
	} {
		t.Run(name, test)
	}
}

func (w *world) neighbour(t *testing.T, f family, vip netip.Addr) family {
	t.Helper()
	f.vip = vip
	put(t, w.Vips, address(f.vip), uint32(1))
	w.setFilter(t, f.vip)
	w.putFrontend(t, f, portCluster, f.frontend(portCluster))
	return f
}

// quietFlows are a few flows of each kind of a VIP.
func quietFlows(f family, kind layers.IPProtocol, firstPort int) []packet {
	p := f.udp(portCluster)
	if kind == layers.IPProtocolTCP {
		p = f.tcp(portCluster, "S")
	}
	flows := make([]packet, 12)
	for i := range flows {
		flows[i] = p.with(func(p *packet) { p.from = netip.AddrPortFrom(p.from.Addr(), uint16(firstPort+i)) })
	}
	return flows
}

// A flood of one VIP breaks no flow of others: connections, handshakes, requests, answered datagrams and
// ports of fragments.
func TestFloodOfOneVIP(t *testing.T) {
	const connections = 250
	w := newWorld(t)
	for _, f := range families {
		flooded := w.neighbour(t, f, f.other.Next())
		third := w.neighbour(t, f, f.other.Next().Next())
		w.forget(t)
		w.pointTo(t, f, 0)
		var established []packet
		port := 10000
		for _, quiet := range []family{f, third} {
			for range connections {
				port++
				p := quiet.tcp(portCluster, "A").with(func(p *packet) {
					p.from = netip.AddrPortFrom(p.from.Addr(), uint16(port))
				})
				w.establish(t, p, f.pods[0])
				established = append(established, p)
			}
		}
		handshakes := quietFlows(f, layers.IPProtocolTCP, 1000)
		questions := quietFlows(f, layers.IPProtocolUDP, 2000)
		answered := quietFlows(f, layers.IPProtocolUDP, 3000)
		for i := range handshakes {
			w.play(t, handshakes[i], questions[i])
			w.establish(t, answered[i], f.pods[0])
		}
		first := f.udp(portCluster).with(part(0, true, 7))
		later := f.udp(portCluster).with(part(100, false, 7))
		w.play(t, first)
		for _, flood := range untrustedHosts(w, flooded) {
			t.Run(f.name+"/"+flood.name, func(t *testing.T) {
				w.pointTo(t, f, 1)
				before := w.tally(t)
				for range floodPackets(t) {
					flood.send(t)
				}
				counted := w.tally(t).since(before)[eventName(bpf.DatapathEventEVENT_OVER_QUOTA)]
				if (counted != 0) != flood.makesEntries {
					t.Errorf("%d entries were created in the overflow tables", counted)
				}
				w.checkPlaces(t, "established", established)
				w.checkPlaces(t, "half-open", handshakes)
				w.checkPlaces(t, "half-open", questions)
				w.checkPlaces(t, "answered", answered)
				checkFrame(t, w.ingress(t, later.frame()).frame, delivered(later, f.pods[0]))
				for _, p := range established {
					if got := w.ingress(t, p.frame()); got.verdict != xdpPass || !bytes.Equal(got.frame, delivered(p, f.pods[0])) {
						t.Fatalf("connection %v was delivered as\n%s", p.from, show(got.frame))
					}
				}
			})
		}
		for i := range handshakes {
			w.play(t, answer(handshakes[i], f.pods[0], "SA"), handshakes[i].with(func(p *packet) { p.flags = "A" }))
			w.play(t, answer(questions[i], f.pods[0], ""), questions[i])
		}
		w.checkPlaces(t, "established", handshakes)
		w.checkPlaces(t, "answered", questions)
	}
}

func (w *world) checkPlaces(t *testing.T, want string, flows []packet) {
	t.Helper()
	lost := 0
	for _, p := range flows {
		if w.place(t, p) != want {
			lost++
		}
	}
	if lost != 0 {
		t.Errorf("%d of %d %s flows were evicted", lost, len(flows), want)
	}
}

// A VIP returns to its own tables after its flood, and used entries of the overflow tables are still found.
func TestOverQuotaEnds(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		w.forget(t)
		w.pointTo(t, f, 0)
		s := newSpoofer(w, f.udp(portCluster))
		for range 300 {
			s.newSource()
			s.send(t)
		}
		w.wipe(t)
		p := f.udp(portCluster)
		w.play(t, p)
		w.ageQuotas(t, 61)
		before := w.tally(t)
		w.establish(t, p.with(func(p *packet) { p.from = netip.AddrPortFrom(p.from.Addr(), 77) }), f.pods[0])
		if n := w.tally(t).since(before)[eventName(bpf.DatapathEventEVENT_OVER_QUOTA)]; n != 0 {
			t.Errorf("%s: %d overflow entries after the flood, want 0", f.name, n)
		}
		if got := w.place(t, p); got != "half-open" {
			t.Errorf("%s: %s", f.name, got)
		}
		// An entry used every 100 seconds does not expire.
		for range 4 {
			w.age(t, 100)
			w.ageQuotas(t, 100)
			opened := w.tally(t)
			w.play(t, p)
			if got := w.tally(t).since(opened)[f.name+" port 80 connections"]; got != 0 {
				t.Errorf("%s: %d new flows, want the flow of the overflow table", f.name, got)
			}
		}
		w.ageQuotas(t, 241)
		opened := w.tally(t)
		w.play(t, p)
		if got := w.tally(t).since(opened)[f.name+" port 80 connections"]; got != 1 {
			t.Errorf("%s: the overflow entry is used 241 s after its last packet", f.name)
		}
	}
}

func (w *world) ageQuotas(t *testing.T, seconds uint32) {
	t.Helper()
	ticks := seconds * w.ticks(t)
	for slot := range w.VipQuotas.MaxEntries() {
		var c bpf.DatapathQuotas
		if err := w.VipQuotas.Lookup(slot, &c); err != nil {
			t.Fatal(err)
		}
		if c == (bpf.DatapathQuotas{}) {
			continue
		}
		for i := range c.Kind {
			c.Kind[i].Since -= ticks
			for _, stamp := range []*uint32{&c.Kind[i].Exceeded, &c.Kind[i].Used} {
				if *stamp != 0 {
					*stamp -= ticks
				}
			}
		}
		put(t, w.VipQuotas, slot, c)
	}
}

func offset(a netip.Addr, n uint32) netip.Addr {
	b := a.AsSlice()
	last := b[len(b)-4:]
	binary.BigEndian.PutUint32(last, binary.BigEndian.Uint32(last)+n)
	moved, _ := netip.AddrFromSlice(b)
	return moved
}

// An address cannot be chosen to share the quota of another VIP: with Fibonacci hashing all of these
// addresses shared its slot.
func TestQuotaSlotsAreKeyed(t *testing.T) {
	distances := map[string][]uint32{"IPv4": {4181, 8362, 10946, 15127}, "IPv6": {4149, 13762, 17655, 24415}}
	w := newWorld(t)
	for _, f := range families {
		shared := 0
		for _, distance := range distances[f.name] {
			w.forget(t)
			w.pointTo(t, f, 0)
			s := newSpoofer(w, w.neighbour(t, f, offset(f.vip, distance)).tcp(portCluster, "S"))
			for range 200 {
				s.newSource()
				s.send(t)
			}
			before := w.tally(t)
			w.play(t, f.tcp(portCluster, "S"))
			shared += int(w.tally(t).since(before)[eventName(bpf.DatapathEventEVENT_OVER_QUOTA)])
		}
		if shared > 1 {
			t.Errorf("%s: %d of 4 VIPs share the quota of the VIP under test", f.name, shared)
		}
	}
}

// A hostile pod answers spoofed SYNs and predicts the numbers of the ACKs, to establish connections with
// fictitious clients. This evicts no connection or record of another VIP, and validations beyond the quota do not
// consume the quota of half-open flows.
func TestFloodOfValidatedConnections(t *testing.T) {
	const connections = 250
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			var established []packet
			for i := range connections {
				p := f.tcp(portCluster, "A").fromPort(uint16(10000 + i))
				w.establish(t, p, f.pods[0])
				established = append(established, p)
			}
			s := newSpoofer(w, w.neighbour(t, f, f.other.Next()).tcp(portCluster, "S"))
			for range 8 * flowEntries {
				s.newSource()
				s.prove(t, f.pods[0])
			}
			if n := mapEntries(t, w.OverflowConn); n < flowEntries/2 {
				t.Fatalf("the flood created %d connections, too few to fill a table", n)
			}
			w.checkPlaces(t, "established", established)
			w.pointTo(t, f, 1)
			defer w.pointTo(t, f, 0)
			for _, wiped := range []bool{false, true} {
				if wiped {
					w.wipe(t)
				}
				lost := 0
				for _, p := range established {
					if !bytes.Equal(w.ingress(t, p.frame()).frame, delivered(p, f.pods[0])) {
						lost++
					}
				}
				if lost != 0 {
					t.Errorf("entries wiped: %v: %d of %d connections lost their pod", wiped, lost, connections)
				}
			}
		})
	}
}

func mapEntries(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	var key, value []byte
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		n++
	}
	return n
}
