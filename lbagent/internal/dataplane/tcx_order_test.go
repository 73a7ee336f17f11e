// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

func attachForeign(t *testing.T, name string, ifindex int, anchor link.Anchor) (id ebpf.ProgramID, detach func(), err error) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ = info.ID()
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: ebpf.AttachTCXEgress, Anchor: anchor})
	return id, func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}, err
}

// Programs attached by a CNI before ours are reported, also by a later agent; those after ours are not.
func TestProgramsBefore(t *testing.T) {
	config := smallConfig(mountBPF(t))
	d := openDataplane(t, config)
	uplink, other := newTap(t, "uplink"), newTap(t, "other")
	if err := d.Attach([]Uplink{uplink, other}); err != nil {
		t.Fatal(err)
	}
	check := func(step string, want ...string) {
		t.Helper()
		got, err := d.ProgramsBefore()
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if !slices.Equal(got[uplink.Name], want) || len(got[other.Name]) > 0 {
			t.Errorf("%s: order %v, want %v on %s", step, got, want, uplink.Name)
		}
	}
	check("alone")
	_, detach, err := attachForeign(t, "behind", uplink.Index, link.Tail())
	if errors.Is(err, ebpf.ErrNotSupported) {
		check("kernel without tcx")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer detach()
	check("behind")
	id, detach, err := attachForeign(t, "before", uplink.Index, link.Head())
	if err != nil {
		t.Fatal(err)
	}
	check("first in the order", fmt.Sprintf("program %d (before)", id))
	if err := d.Attach([]Uplink{uplink, other}); err != nil {
		t.Fatal(err)
	}
	check("attached a second time", fmt.Sprintf("program %d (before)", id))
	detach()
	check("removed a second time")
}
