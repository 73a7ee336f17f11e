// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/bpf"
)

const halfOpenSlots = int(bpf.DatapathShapeHALF_OPEN_SLOTS) * halfOpenBuckets

func (f family) handshakes(count int) []packet {
	all := f.flows(count)
	for i := range all {
		all[i].flags, all[i].to = "S", f.to(portCluster)
	}
	return all
}

// Every half-open flow is found in both directions while there is room.
func TestHalfOpenFlowsAreFound(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		w.forget(t)
		w.pointTo(t, f, 0)
		flows := f.handshakes(flowEntries / 4)
		for _, p := range flows {
			w.play(t, p)
		}
		w.checkPlaces(t, "half-open", flows)
		for _, p := range flows {
			synAck := answer(p, f.pods[0], "SA")
			checkFrame(t, w.egress(t, synAck.frame()), synAck.with(func(a *packet) { a.from = p.to }).frame())
			w.play(t, p.with(func(p *packet) { p.flags = "A" }))
		}
		w.checkPlaces(t, "established", flows)
		if n, err := w.halfOpen().Count(); err != nil || n != 0 {
			t.Errorf("%s: %d flows remain, error %v", f.name, n, err)
		}
	}
}

// A flood fills only its own table, and evicts the least recently used flows, not active ones.
func TestHalfOpenFlowsBeyondTheRoom(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		w.forget(t)
		w.pointTo(t, f, 0)
		s := newSpoofer(w, f.tcp(portCluster, "S"))
		flood := func(n int) {
			for range n {
				s.newSource()
				s.send(t)
			}
		}
		const share = 200
		flood(share)
		first, last := f.handshakes(512), f.handshakes(1024)[512:]
		used := f.udp(portCluster)
		for _, p := range append(first, used) {
			w.play(t, p)
		}
		for range 32 {
			flood(halfOpenSlots / 8)
			w.age(t, 6)
			before := w.tally(t)
			w.play(t, used)
			if n := w.tally(t).since(before)[f.name+" port 80 connections"]; n != 0 {
				t.Fatalf("%s: an active flow was evicted", f.name)
			}
		}
		for _, p := range last {
			w.play(t, p)
		}
		w.checkPlaces(t, "half-open", last)
		kept := 0
		for _, p := range first {
			if w.place(t, p) != "none" {
				kept++
			}
		}
		if most := len(first) / 20; kept > most {
			t.Errorf("%s: %d of the first %d flows remain, want at most %d", f.name, kept, len(first), most)
		}
		n, err := w.halfOpen().Count()
		if most := halfOpenSlots + share; err != nil || n < halfOpenSlots*19/20 || n > most {
			t.Errorf("%s: %d flows, error %v, want %d to %d", f.name, n, err, halfOpenSlots*19/20, most)
		}
	}
}

// A handshake during short floods on other CPUs is delivered and answered as its own.
func TestHalfOpenFlowsOnAllCPUs(t *testing.T) {
	w := newWorld(t)
	f := families[0]
	w.pointTo(t, f, 0)
	spoofers := []*spoofer{newSpoofer(w, f.tcp(portClusterTwin, "S")), newSpoofer(w, f.tcp(portClusterTwin, "S"))}
	for i := range 500 {
		var group errgroup.Group
		for _, s := range spoofers {
			group.Go(func() error {
				for range 100 {
					s.newSource()
					s.run.DataOut = s.run.DataOut[:cap(s.run.DataOut)]
					if _, err := w.Ingress.Run(&s.run); err != nil {
						return err
					}
				}
				return nil
			})
		}
		p := f.tcp(portCluster, "S").with(func(p *packet) { p.from = netip.AddrPortFrom(p.from.Addr(), uint16(20000+i)) })
		checkFrame(t, w.ingress(t, p.frame()).frame, delivered(p, f.pods[0]))
		synAck := answer(p, f.pods[0], "SA")
		checkFrame(t, w.egress(t, synAck.frame()), synAck.with(func(a *packet) { a.from = p.to }).frame())
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}
