// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/test/isolated"
)

// kernelMaps are a node's maps in the kernel, written by the real data plane.
type kernelMaps struct {
	plane  *dataplane.Dataplane
	config dataplane.Config
	guard  *guard
	// refuses selects failing writes by operation and call.
	refuses func(operation string, call writeCall) bool
	// reopens is true if the next agent opens the data plane again; it also does after a kill or with other
	// sizes.
	reopens bool
	opens   int
}

func (m *kernelMaps) open(limits forwarding.Limits) error {
	if m.plane != nil && !m.reopens && m.config.Limits == limits {
		return nil
	}
	if err := m.close(); err != nil {
		return err
	}
	m.config.Limits = limits
	m.opens++
	var err error
	m.plane, err = dataplane.Open(m.config)
	return err
}

func (m *kernelMaps) close() error {
	if m.plane == nil {
		return nil
	}
	plane := m.plane
	m.plane = nil
	return plane.Close()
}

// empty resets the maps to those of a new node.
func (m *kernelMaps) empty() error {
	if m.plane == nil {
		return nil
	}
	have, err := m.plane.Dump()
	if err != nil {
		return err
	}
	for _, op := range forwarding.Diff(have, forwarding.NewState()) {
		if err := m.plane.Apply(op); err != nil {
			return err
		}
	}
	return nil
}

// apply converts a failure caused by the guard to an injected one.
func (m *kernelMaps) apply(op forwarding.Op, kind string) error {
	refused := false
	err := m.guard.during(func(call writeCall) bool {
		fails := m.refuses(kind, call)
		refused = refused || fails
		return fails
	}, func() error { return m.plane.Apply(op) })
	switch {
	case refused && err == nil:
		return fmt.Errorf("%s: a write was rejected, but the operation succeeded", kind)
	case refused:
		return fmt.Errorf("%w: %w", errInjected, err)
	default:
		return err
	}
}

func (m *kernelMaps) pinned(t *testing.T, name string) *ebpf.Map {
	t.Helper()
	opened, err := ebpf.LoadPinnedMap(filepath.Join(m.config.PinRoot, "maps", name), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// checkAddresses compares the accepted tunnel sources with the nodes' addresses.
func (m *kernelMaps) checkAddresses(t *testing.T, nodes map[forwarding.NodeID]forwarding.Node) {
	t.Helper()
	accepted := m.pinned(t, bpf.DatapathMapNodeAddresses)
	defer accepted.Close()
	want, got := map[netip.Addr]forwarding.NodeID{}, map[netip.Addr]forwarding.NodeID{}
	for id, node := range nodes {
		for _, address := range []netip.Addr{node.IPv4, node.IPv6} {
			if address.IsValid() {
				want[address] = id
			}
		}
	}
	var address [16]byte
	var id uint32
	entries := accepted.Iterate()
	for entries.Next(&address, &id) {
		got[netip.AddrFrom16(address).Unmap()] = forwarding.NodeID(id)
	}
	if err := entries.Err(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("accepted sources = %v (error %v), want %v", got, err, want)
	}
}

// checkOverhead compares the encapsulation overhead with the addresses of both nodes.
func (m *kernelMaps) checkOverhead(t *testing.T, self forwarding.Self, nodes map[forwarding.NodeID]forwarding.Node) {
	t.Helper()
	settings := m.pinned(t, bpf.DatapathMapSettings)
	defer settings.Close()
	var got bpf.DatapathSelf
	if err := settings.Lookup(uint32(0), &got); err != nil {
		t.Fatal(err)
	}
	want := bpf.DatapathOverheadOVERHEAD_IPV4
	for _, node := range nodes {
		if !self.IPv4.IsValid() || !node.IPv4.IsValid() {
			want = bpf.DatapathOverheadOVERHEAD_IPV6
		}
	}
	if highest := slices.Max(append(slices.Collect(maps.Keys(nodes)), self.ID)); highest > forwarding.MaxShortNodeID {
		want += bpf.DatapathOverheadOVERHEAD_HIGH
	}
	if got.Overhead != uint16(want) {
		t.Errorf("Overhead = %d, want %d", got.Overhead, want)
	}
}

// TestStoriesOnMaps plays the stories on maps in the kernel, unchanged and with failures of single calls of
// an operation.
func TestStoriesOnMaps(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	directory := t.TempDir()
	if err := unix.Mount("bpf", directory, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	kernel := &kernelMaps{
		guard: newGuard(t),
		config: dataplane.Config{
			PinRoot: filepath.Join(directory, "millrace"), Connections: 64, HalfOpen: 64, Datagrams: 64, Affinities: 64, Overrides: 64,
		},
	}
	t.Cleanup(func() {
		if err := errors.Join(kernel.close(), unix.Unmount(directory, 0)); err != nil {
			t.Error(err)
		}
	})
	known := seen{map[way]bool{}, map[writeCall]bool{}}
	for _, s := range readStories(t) {
		t.Run(s.name, func(t *testing.T) {
			kernel.reopens = true
			p := newPlayer(s, newNodeOn(t, kernel))
			p.node.fails = p.asTold
			p.play(t, p.commands())
		})
		t.Run(s.name+"/disturbed", func(t *testing.T) {
			kernel.reopens = false
			disturbOnMaps(t, s, kernel, known)
		})
	}
}

func newNodeOn(t *testing.T, kernel *kernelMaps) *node {
	t.Helper()
	if err := kernel.empty(); err != nil {
		t.Fatal(err)
	}
	kernel.refuses = func(string, writeCall) bool { return false }
	n := newNode(t)
	n.maps = kernel
	return n
}

type way struct {
	operation string
	call      writeCall
}

var everyWrite = flag.Bool("every-write", false, "let every single write of the stories on maps fail (half an hour)")

// seen are the ways disturbed by previous stories, and the calls from which all failed or at which an agent
// was killed.
type seen struct {
	ways  map[way]bool
	calls map[writeCall]bool
}

// disturbOnMaps fails the last write of each way, and the first one of a new way; at the first write to a new
// map it fails all further writes, and kills the agent. Opening the data plane is slow, so it is limited to
// kills, and stories with several sizes skip what others cover.
func disturbOnMaps(t *testing.T, s *story, kernel *kernelMaps, known seen) {
	play := func(t *testing.T, by *saboteur, see func(string, writeCall)) *outcome {
		n := newNodeOn(t, kernel)
		kernel.refuses = func(operation string, call writeCall) bool {
			see(operation, call)
			return by.fails()
		}
		n.killed = func() bool {
			was := by.killed
			by.killed = false
			if was {
				if err := kernel.close(); err != nil {
					t.Error(err)
				}
			}
			return was
		}
		end := playDisturbed(t, newPlayer(s, n), by)
		kernel.checkAddresses(t, end.Nodes)
		kernel.checkOverhead(t, end.Self, end.Nodes)
		return end
	}
	first, last := map[way]int{}, map[way]int{}
	counted, opens := &saboteur{}, max(kernel.opens, 1)
	undisturbed := play(t, counted, func(operation string, call writeCall) {
		this := way{operation, call}
		if last[this] = counted.writes + 1; first[this] == 0 {
			first[this] = last[this]
		}
	})
	chosen := map[int][]disturbance{}
	for this := range first {
		if kernel.opens == opens {
			chosen[last[this]] = []disturbance{oneFails}
		}
	}
	inOrder := func(a, b way) int { return cmp.Compare(first[a], first[b]) }
	for _, this := range slices.SortedFunc(maps.Keys(first), inOrder) {
		if k := first[this]; !known.ways[this] {
			chosen[k] = []disturbance{oneFails}
			if !known.calls[this.call] {
				chosen[k] = append(chosen[k], restFails, killed)
			}
			known.ways[this], known.calls[this.call] = true, true
		}
	}
	t.Logf("%d writes of %d kinds", counted.writes, len(first))
	for k := range counted.writes {
		if *everyWrite {
			chosen[k+1] = []disturbance{oneFails, restFails, killed}
		}
		for _, d := range chosen[k+1] {
			t.Run(fmt.Sprintf("%s/%d", d, k+1), func(t *testing.T) {
				end := play(t, &saboteur{what: d, k: k + 1}, func(string, writeCall) {})
				undisturbed.compare(t, end)
			})
		}
	}
}
