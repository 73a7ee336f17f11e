// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

func (w *world) sweep() error {
	request := bpf.DatapathOverrideSweep{}
	for _, step := range []struct {
		program *ebpf.Program
		places  uint32
	}{{w.SweepOverrides, w.OverrideFilter.MaxEntries()}, {w.ClearRowFlags, w.Rows.MaxEntries()}} {
		request.First, request.Count = 0, step.places
		done, err := step.program.Run(&ebpf.RunOptions{Context: request, ContextOut: &request})
		if err != nil {
			return err
		}
		if done != step.places {
			return fmt.Errorf("%d of %d slots were swept", done, step.places)
		}
	}
	return nil
}

func (w *world) mustSweep(t testing.TB) {
	t.Helper()
	if err := w.sweep(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) learn(t testing.TB, p packet) {
	t.Helper()
	redirect := withFlags(p.arrived(v4, 2), flagRedirect).with(func(in *tunnel) { in.ingress = selfID })
	if got := w.ingress(t, redirect.frame()); got.verdict != xdpTX {
		t.Fatalf("redirect for %v: verdict %d, want %d", p.from, got.verdict, xdpTX)
	}
}

func (f family) flows(count int) []packet {
	var all []packet
	for i := range count {
		p := f.tcp(portNode3, "A")
		client := p.from.Addr().AsSlice()
		client[len(client)-1] = byte(i >> 10)
		address, _ := netip.AddrFromSlice(client)
		p.from = netip.AddrPortFrom(address, uint16(1024+i&1023))
		all = append(all, p)
	}
	return all
}

// A row's flag is cleared when its overrides have expired or name its primary, and set again when it moves.
func TestRowFlagsAreCleared(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		p := f.tcp(portNode3, "A")
		for _, c := range []struct {
			name      string
			node, ago uint32
			marked    bool
			after     uint32
		}{
			{"in use", 2, 0, true, 2},
			{"override two hours old", 2, 7440, true, 2},
			{"expired", 2, 7503, false, none},
			{"node of the override removed", 99, 0, false, none},
			{"override to the primary of the row", 3, 0, false, 3},
		} {
			t.Run(f.name+"/"+c.name, func(t *testing.T) {
				w.clearOverrides(t)
				w.except(t, p, c.node, c.ago)
				w.mark(t, p, bpf.DatapathRowGroup{Overridden: w.ago(t, 1)})
				w.mustSweep(t)
				if got := w.isMarked(t, p); got != c.marked {
					t.Errorf("isMarked = %v, want %v", got, c.marked)
				}
				if got := w.override(t, p); got != c.after {
					t.Errorf("override to node %d, want %d", got, c.after)
				}
				w.unmark(t, p)
			})
		}
		t.Run(f.name+"/the row moves on", func(t *testing.T) {
			w.clearOverrides(t)
			w.except(t, p, 3, 0)
			w.mark(t, p, bpf.DatapathRowGroup{Overridden: w.ago(t, 1)})
			w.mustSweep(t)
			update := bpf.DatapathRowUpdate{Row: p.rowIndex() % 4096, Path: table{primary: 2}.row().Path}
			put(t, w.RowUpdates, uint32(0), update)
			request := bpf.DatapathRowsWrite{First: p.rowIndex() &^ 4095, Count: 1}
			if _, err := w.WriteRows.Run(&ebpf.RunOptions{Context: request}); err != nil {
				t.Fatal(err)
			}
			w.check(t, fixture{
				in: p.frame(), verdict: xdpTX, out: toNode3(withFlags(p.tunnelled(node3, 2), flagOverride|flagLookup)),
				counts: join(f.received(p), overrideUsed),
			})
			w.unmark(t, p)
		})
	}
}

// Every override is found while there is room, also behind full buckets, before and after sweeps and
// deletions.
func TestOverridesAreFound(t *testing.T) {
	w := newWorld(t)
	const count = 2400
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.clearOverrides(t)
			flows := f.flows(count)
			check := func(step string, every int) {
				t.Helper()
				for i, p := range flows {
					want := uint32(2)
					if every > 0 && i%every == 0 {
						want = none
					}
					if got := w.override(t, p); got != want {
						t.Fatalf("%s: override of flow %d to node %d, want %d", step, i, got, want)
					}
				}
			}
			for _, p := range flows {
				w.learn(t, p)
			}
			check("learned", 0)
			w.mustSweep(t)
			check("swept", 0)
			for i := 0; i < count; i += 3 {
				gone := withFlags(flows[i].arrived(v4, 0), flagRedirect).with(func(in *tunnel) { in.ingress = selfID })
				w.ingress(t, gone.frame())
			}
			check("forgotten", 3)
			w.mustSweep(t)
			check("forgotten and swept", 3)
			for i := 0; i < count; i += 3 {
				w.learn(t, flows[i])
			}
			check("override created again", 0)
		})
	}
}

// A full table evicts entries and retains the others.
func TestOverridesBeyondTheRoom(t *testing.T) {
	w := newWorld(t)
	f := families[0]
	flows := f.flows(12 * overrideBuckets)
	for _, p := range flows {
		w.learn(t, p)
	}
	found := 0
	for _, p := range flows {
		if w.override(t, p) != none {
			found++
		}
	}
	if least, most := 7*overrideBuckets, 8*overrideBuckets; found < least || found > most {
		t.Errorf("%d of %d overrides remain, want %d to %d", found, len(flows), least, most)
	}
}

// Sweeps lose no override that is added meanwhile, nor its filter bits and row flag.
func TestOverridesAreLearnedDuringSweeps(t *testing.T) {
	w := newWorld(t)
	f := families[0]
	var stop atomic.Bool
	sweeps := 0
	var group errgroup.Group
	group.Go(func() error {
		for ; !stop.Load(); sweeps++ {
			if err := w.sweep(); err != nil {
				return err
			}
		}
		return nil
	})
	flows := f.flows(2400)
	for round := range 4 {
		for i, p := range flows {
			w.learn(t, p)
			// A sweep may briefly hide an override that it has not visited.
			about, err := w.overrides().Find(p.from, p.to, uint8(p.protocol))
			for again := 0; err != nil && again < 100; again++ {
				about, err = w.overrides().Find(p.from, p.to, uint8(p.protocol))
			}
			if err != nil || rig.OverrideNode(about) != uint32(nodeID(2)) || !w.isMarked(t, p) {
				t.Errorf("round %d: flow %d has override %x, error %v; row marked: %v", round, i, about, err, w.isMarked(t, p))
			}
			gone := withFlags(p.arrived(v4, 0), flagRedirect).with(func(in *tunnel) { in.ingress = selfID })
			w.ingress(t, gone.frame())
		}
	}
	stop.Store(true)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if sweeps < 10 {
		t.Errorf("only %d sweeps ran", sweeps)
	}
}
