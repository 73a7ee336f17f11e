// SPDX-License-Identifier: Apache-2.0

package clsact

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/isolated"
)

// newInterface returns the index of an interface in a namespace of the test's thread.
func newInterface(t *testing.T) int {
	t.Helper()
	isolated.Thread(t)
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "test"}}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	return link.Index
}

func newProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "GPL",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func programs(t *testing.T, hook Hook) (names []string, ids []int) {
	t.Helper()
	filters, err := list(hook)
	if err != nil {
		t.Fatal(err)
	}
	for _, filter := range filters {
		bpf, ok := filter.(*netlink.BpfFilter)
		if !ok {
			names, ids = append(names, filter.Type()), append(ids, 0)
			continue
		}
		names, ids = append(names, bpf.Name), append(ids, bpf.Id)
	}
	return names, ids
}

func programID(t *testing.T, p *ebpf.Program) int {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return int(id)
}

func addForeign(t *testing.T, hook Hook, name string, priority uint16, handle uint32) {
	t.Helper()
	err := netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: hook.Interface, Parent: uint32(hook.Direction),
			Handle: handle, Priority: priority, Protocol: unix.ETH_P_ALL},
		Fd: newProgram(t).FD(), Name: name, DirectAction: true,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func countQdiscs(t *testing.T, index int) int {
	t.Helper()
	qdiscs, err := netlink.QdiscList(device(index))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, q := range qdiscs {
		if q.Type() == "clsact" {
			count++
		}
	}
	return count
}

func TestAttach(t *testing.T) {
	index := newInterface(t)
	for _, direction := range []Direction{Ingress, Egress} {
		hook := Hook{Interface: index, Direction: direction, Name: "ours"}
		check := func(step string, current *ebpf.Program, want ...string) {
			t.Helper()
			names, ids := programs(t, hook)
			if !slices.Equal(names, want) {
				t.Fatalf("%s: filters %v, want %v", step, names, want)
			}
			if at := slices.Index(names, "ours"); at >= 0 && ids[at] != programID(t, current) {
				t.Errorf("%s: the filter does not run the given program", step)
			}
		}
		first, second := newProgram(t), newProgram(t)
		attach := func(p *ebpf.Program) {
			t.Helper()
			if err := Attach(hook, p.FD()); err != nil {
				t.Fatal(err)
			}
		}
		attach(first)
		check("new", first, "ours")
		attach(second)
		check("replaced", second, "ours")
		addForeign(t, hook, "later", 2, 1)
		attach(first)
		check("before another priority", first, "ours", "later")
		addForeign(t, hook, "same", 1, 1)
		check("another filter attached first", first, "same", "ours", "later")
		attach(second)
		check("first again", second, "ours", "same", "later")
		addForeign(t, hook, "ours", 1, 2)
		attach(first)
		if attached, err := Attached(hook); err != nil || !attached {
			t.Errorf("Attached = %v, %v; want true", attached, err)
		}
		if err := Detach(hook); err != nil {
			t.Fatal(err)
		}
		if attached, err := Attached(hook); err != nil || attached {
			t.Errorf("Attached after Detach = %v, %v; want false", attached, err)
		}
		// A filter with another handle is not ours, regardless of its name.
		names, _ := programs(t, hook)
		if want := []string{"ours", "same", "later"}; !slices.Equal(names, want) {
			t.Errorf("filters %v, want the foreign filters %v", names, want)
		}
		if countQdiscs(t, index) != 1 {
			t.Error("the qdisc of foreign filters was removed")
		}
	}
}

func TestQdiscIsRemovedWithLastFilter(t *testing.T) {
	index := newInterface(t)
	in, out := Hook{index, Ingress, "in"}, Hook{index, Egress, "out"}
	for _, hook := range []Hook{in, out} {
		if err := Attach(hook, newProgram(t).FD()); err != nil {
			t.Fatal(err)
		}
	}
	for i, hook := range []Hook{in, in, out, out} {
		if err := Detach(hook); err != nil {
			t.Fatal(err)
		}
		if got, want := countQdiscs(t, index), map[bool]int{true: 1}[i < 2]; got != want {
			t.Errorf("after detaching %d filters: %d qdiscs, want %d", i+1, got, want)
		}
	}
	if err := Detach(Hook{Interface: 4242, Direction: Egress, Name: "gone"}); err != nil {
		t.Errorf("Detach from a removed interface: %v", err)
	}
}

func TestAttachRefused(t *testing.T) {
	index := newInterface(t)
	hook := Hook{index, Egress, "ours"}
	program := newProgram(t)
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index,
		Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := netlink.QdiscAdd(ingress); err != nil {
		t.Fatal(err)
	}
	if err := Attach(hook, program.FD()); err == nil {
		t.Error("no error when attaching below an ingress qdisc")
	}
	if err := netlink.QdiscDel(ingress); err != nil {
		t.Fatal(err)
	}
	if err := addQdisc(index); err != nil {
		t.Fatal(err)
	}
	u32 := &netlink.U32{FilterAttrs: netlink.FilterAttrs{LinkIndex: index,
		Parent: uint32(Egress), Priority: priority, Protocol: unix.ETH_P_ALL}}
	if err := netlink.FilterAdd(u32); err != nil {
		t.Fatal(err)
	}
	if err := Attach(hook, program.FD()); err == nil {
		t.Error("no error when the priority is used by a filter of another kind")
	}
	if attached, err := Attached(hook); err != nil || attached {
		t.Errorf("Attached = %v, %v; want false", attached, err)
	}
	if err := Attach(Hook{Interface: 4242, Direction: Egress, Name: "gone"}, program.FD()); err == nil {
		t.Error("no error when attaching to a missing interface")
	}
}
