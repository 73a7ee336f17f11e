// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

const affinitySeconds = 600

func affineWorld(t *testing.T, w *world, f family) {
	t.Helper()
	w.forget(t)
	frontend := f.frontend(portCluster)
	frontend.Affinity = affinitySeconds
	w.putFrontend(t, f, portCluster, frontend)
	t.Cleanup(func() { w.putFrontend(t, f, portCluster, f.frontend(portCluster)) })
}

func (p packet) fromPort(port uint16) packet {
	p.from = netip.AddrPortFrom(p.from.Addr(), port)
	return p
}

func (w *world) affinities(t *testing.T) (n int) {
	t.Helper()
	for _, bucket := range entries[uint32, bpf.DatapathAffinityBucket](t, w.Affinities) {
		for _, record := range bucket.Record {
			if record.Key.EndpointTable != 0 {
				n++
			}
		}
	}
	return n
}

// All flows of a client have one row, hashed from its address without the port, and one endpoint, without a
// record. Clients spread evenly.
func TestAffinityByHash(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, p := range []packet{f.tcp(portCluster, "S"), f.udp(portCluster)} {
			t.Run(f.name+"/"+p.protocol.String(), func(t *testing.T) {
				affineWorld(t, w, f)
				w.putEndpointRows(t, f, func(row int) int { return row % 2 })
				defer w.pointTo(t, f, 0)
				pods := map[int]bool{}
				for last := range byte(20) {
					client := p.from.Addr().AsSlice()
					client[len(client)-1] = last + 101
					address, _ := netip.AddrFromSlice(client)
					p.from = netip.AddrPortFrom(address, 0)
					node, endpoint := flowHash(p)
					pod := int(endpoint>>23) % 2
					pods[pod] = true
					for port := uint16(1024); port < 1034; port++ {
						flow := p.fromPort(port)
						if _, trace := w.trace(t, flow.frame()); trace.Row != node>>20 {
							t.Errorf("%v: row %d, want %d", flow.from, trace.Row, node>>20)
						}
						checkFrame(t, w.ingress(t, flow.frame()).frame, delivered(flow, f.pods[pod]))
					}
				}
				if len(pods) != 2 {
					t.Error("all clients select the same endpoint")
				}
				if n := w.affinities(t); n != 0 {
					t.Errorf("%d affinity records for flows that are not established, want 0", n)
				}
			})
		}
	}
}

// A client with a record keeps its endpoint until the timeout, while the endpoint accepts connections.
func TestAffinity(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		first, other := f.pods[0], f.pods[1]
		syn := f.tcp(portCluster, "S")
		// Nearly all rows, also the client's, belong to the other endpoint.
		nearlyAll := func(row int) int { return min(row, 1) }
		if _, endpoint := flowHash(syn.fromPort(0)); endpoint>>23 == 0 {
			t.Fatal("the client hashes to the row that remains")
		}
		for _, test := range []struct {
			name string
			// then runs after a connection to the first endpoint was established and the rows changed.
			then func(t *testing.T)
			in   packet
			want netip.AddrPort
		}{
			{name: "another client port", in: syn.fromPort(2000), want: first},
			{name: "another frontend of the Service port", in: syn.fromPort(2000).with(func(p *packet) { p.to = f.to(portLocal) }), want: first},
			{name: "UDP has separate records", in: f.udp(portCluster).fromPort(2000), want: other},
			{name: "another client", in: syn.with(func(p *packet) {
				p.from = netip.AddrPortFrom(p.from.Addr().Prev(), 2000)
			}), want: other},
			{name: "before the timeout", then: func(t *testing.T) { w.age(t, affinitySeconds-10) }, in: syn.fromPort(2000), want: first},
			{name: "after the timeout", then: func(t *testing.T) { w.age(t, affinitySeconds+10) }, in: syn.fromPort(2000), want: other},
			{name: "renewed by a new connection", then: func(t *testing.T) {
				w.age(t, affinitySeconds-10)
				w.establish(t, syn.fromPort(2001), first)
				w.age(t, affinitySeconds-10)
			}, in: syn.fromPort(2000), want: first},
			{name: "of UDP, renewed by a query", then: func(t *testing.T) {
				w.pointTo(t, f, 0)
				w.establish(t, f.udp(portCluster).fromPort(3000), first)
				w.putEndpointRows(t, f, nearlyAll)
				w.age(t, affinitySeconds-10)
				w.play(t, f.udp(portCluster).fromPort(2001))
				w.age(t, affinitySeconds-10)
			}, in: f.udp(portCluster).fromPort(2000), want: first},
			{name: "not renewed by packets of existing connections", then: func(t *testing.T) {
				w.age(t, affinitySeconds-10)
				w.play(t, f.tcp(portCluster, "A"))
				w.age(t, affinitySeconds-10)
			}, in: syn.fromPort(2000), want: other},
			{name: "endpoint accepts no new connections", then: func(t *testing.T) { w.pointTo(t, f, 1) }, in: syn.fromPort(2000), want: other},
			{name: "no fallback to an endpoint that recovered", then: func(t *testing.T) {
				w.pointTo(t, f, 1)
				w.establish(t, syn.fromPort(2001), other)
				w.putEndpointRows(t, f, nearlyAll)
			}, in: syn.fromPort(2000), want: other},
			{name: "endpoint id reused by another endpoint", then: func(t *testing.T) {
				id := 2*(f.endpointSlot-1) + 1
				w.putEndpoint(t, id, netip.AddrPortFrom(first.Addr(), 9999))
				t.Cleanup(func() { w.putEndpoint(t, id, first) })
			}, in: syn.fromPort(2000), want: other},
			{name: "client port in use with the endpoint", then: func(t *testing.T) {
				w.pointTo(t, f, 0)
				w.establish(t, f.tcp(portClusterTwin, "S").fromPort(2000), first)
				w.putEndpointRows(t, f, nearlyAll)
			}, in: syn.fromPort(2000), want: other},
			{name: "the established connection itself", then: func(t *testing.T) { w.pointTo(t, f, 1) }, in: f.tcp(portCluster, "A"), want: first},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				affineWorld(t, w, f)
				local := f.frontend(portLocal)
				local.Affinity = affinitySeconds
				w.putFrontend(t, f, portLocal, local)
				defer w.putFrontend(t, f, portLocal, f.frontend(portLocal))
				w.pointTo(t, f, 0)
				defer w.pointTo(t, f, 0)
				w.establish(t, syn, first)
				w.putEndpointRows(t, f, nearlyAll)
				if test.then != nil {
					test.then(t)
				}
				checkFrame(t, w.ingress(t, test.in.frame()).frame, delivered(test.in, test.want))
			})
		}
	}
}

// A SYN flood evicts no record.
func TestAffinityInFlood(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			affineWorld(t, w, f)
			w.pointTo(t, f, 0)
			w.establish(t, f.tcp(portCluster, "S"), f.pods[0])
			s := newSpoofer(w, f.tcp(portCluster, "S"))
			for range 2 * flowEntries {
				s.newSource()
				s.send(t)
			}
			if n := w.affinities(t); n != 1 {
				t.Errorf("%d affinity records, want 1 for the established connection", n)
			}
		})
	}
}

// Spoofed datagrams that pods answer create records, but do not evict clients that completed a handshake.
func TestAffinityInDatagramFlood(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			affineWorld(t, w, f)
			w.pointTo(t, f, 0)
			client := f.tcp(portCluster, "S")
			w.establish(t, client, f.pods[0])
			s := newSpoofer(w, f.udp(portCluster))
			for range 2 * flowEntries {
				s.newSource()
				s.send(t)
				s.answered(t, f.pods[0], 0)
				s.send(t)
			}
			if n := w.affinities(t); n < flowEntries {
				t.Fatalf("the flood created %d records, too few to fill a table", n)
			}
			w.pointTo(t, f, 1)
			w.putEndpointRows(t, f, func(row int) int { return min(row, 1) })
			defer w.pointTo(t, f, 0)
			again := client.fromPort(2000)
			checkFrame(t, w.ingress(t, again.frame()).frame, delivered(again, f.pods[0]))
		})
	}
}

// A flood of one VIP evicts no record of another VIP's clients, of any rate and duration: neither answered
// datagrams, nor connections that a hostile pod establishes with arbitrary addresses.
func TestAffinityInFloodOfAnotherVIP(t *testing.T) {
	const clients = 200
	w := newWorld(t)
	for _, f := range families {
		for _, p := range []packet{f.udp(portCluster), f.tcp(portCluster, "S")} {
			t.Run(f.name+"/"+p.protocol.String(), func(t *testing.T) {
				affineWorld(t, w, f)
				flooded := w.neighbour(t, f, f.other.Next())
				frontend := f.frontend(portCluster)
				frontend.Affinity = affinitySeconds
				w.putFrontend(t, flooded, portCluster, frontend)
				w.pointTo(t, f, 0)
				kept := affineClients(t, w, f, p, clients)
				flood := p
				flood.to = flooded.to(portCluster)
				s := newSpoofer(w, flood)
				for range 8 * flowEntries {
					s.newSource()
					s.prove(t, f.pods[0])
				}
				if n := w.affinities(t); n < flowEntries {
					t.Fatalf("the flood created %d records, too few to fill a table", n)
				}
				// The endpoint has one row left, which only clients with a record use.
				w.putEndpointRows(t, f, func(row int) int { return min(row, 1) })
				defer w.pointTo(t, f, 0)
				moved := 0
				for _, client := range kept {
					if again := client.fromPort(2000); !bytes.Equal(w.ingress(t, again.frame()).frame, delivered(again, f.pods[0])) {
						moved++
					}
				}
				if moved != 0 {
					t.Errorf("%d of %d clients changed their pod", moved, clients)
				}
			})
		}
	}
}

func affineClients(t *testing.T, w *world, f family, p packet, n int) []packet {
	t.Helper()
	out := make([]packet, n)
	for i := range out {
		address := p.from.Addr().AsSlice()
		address[len(address)-1] = byte(i + 30)
		client, _ := netip.AddrFromSlice(address)
		out[i] = p.with(func(p *packet) { p.from = netip.AddrPortFrom(client, 1000) })
		w.establish(t, out[i], f.pods[0])
	}
	return out
}

// A VIP whose clients fill the table leaves half of it to another. Expired records are free.
func TestDatagramAffinityIsShared(t *testing.T) {
	const places = affinityBuckets * int(bpf.DatapathShapeAFFINITY_SLOTS)
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			affineWorld(t, w, f)
			later := w.neighbour(t, f, f.other.Next())
			frontend := f.frontend(portCluster)
			frontend.Affinity = affinitySeconds
			w.putFrontend(t, later, portCluster, frontend)
			w.pointTo(t, f, 0)
			w.answeredFlood(t, f, 4*places)
			first := w.affinityOwners(t)
			if len(first) != 1 {
				t.Fatalf("records by VIP: %v, want one VIP", first)
			}
			w.answeredFlood(t, later, 4*places)
			shares := w.affinityOwners(t)
			for owner, n := range shares {
				if len(shares) != 2 || n < places*4/10 {
					t.Errorf("%d slots: VIP %08x owns %d", places, owner, n)
				}
			}
			w.ageAffinities(t, affinitySeconds+10)
			w.answeredFlood(t, later, 4*places)
			shares = w.affinityOwners(t)
			for owner := range first {
				if len(shares) != 1 || shares[owner] != 0 {
					t.Errorf("records by VIP: %v after the records of %08x expired", shares, owner)
				}
			}
		})
	}
}

func (w *world) answeredFlood(t *testing.T, f family, n int) {
	t.Helper()
	s := newSpoofer(w, f.udp(portCluster))
	s.random = rand.New(rand.NewPCG(rand.Uint64(), 4))
	for range n {
		s.newSource()
		s.prove(t, f.pods[0])
	}
}

func (w *world) affinityOwners(t *testing.T) map[uint32]int {
	t.Helper()
	owners := map[uint32]int{}
	for _, bucket := range entries[uint32, bpf.DatapathAffinityBucket](t, w.Affinities) {
		for _, record := range bucket.Record {
			if record.Key.EndpointTable != 0 {
				owners[record.Owner]++
			}
		}
	}
	return owners
}
