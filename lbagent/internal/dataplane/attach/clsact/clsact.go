// SPDX-License-Identifier: Apache-2.0

// Package clsact attaches BPF programs to an interface by the clsact qdisc and
// cls_bpf filters, for kernels before 6.6, which have no tcx.
//
// A filter of ours has priority 1, the first there is, and is told from those of
// others by its name. Filters of one priority run newest first.
package clsact

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Direction is that of the packets that a program sees.
type Direction uint32

const (
	// Ingress is packets that come in.
	Ingress Direction = netlink.HANDLE_MIN_INGRESS
	// Egress is packets that leave.
	Egress Direction = netlink.HANDLE_MIN_EGRESS
)

// Hook is a place of one program on an interface.
type Hook struct {
	// Interface is the index of the interface.
	Interface int
	Direction Direction
	// Name is that of the program; it tells our filters from others.
	Name string
}

const priority = 1

// Two handles of our own, so that a new filter can stand beside the old one.
var handles = [2]uint32{0x4d4c, 0x4d4d}

// Attach makes the program with this descriptor the first at the hook. One that is
// there already is replaced, and at no moment is there none.
func Attach(hook Hook, program int) error {
	if err := addQdisc(hook.Interface); err != nil {
		return err
	}
	filters, err := list(hook)
	if err != nil {
		return err
	}
	if len(filters) > 0 && filters[0].Attrs().Priority == priority {
		if first, ok := filters[0].(*netlink.BpfFilter); !ok || first.Protocol != unix.ETH_P_ALL {
			return fmt.Errorf("a filter of kind %s has priority %d there, and ours must be first: give it another priority",
				filters[0].Type(), priority)
		}
	}
	own := ours(hook, filters)
	handle := handles[0]
	switch {
	case len(own) > 0 && own[0].Handle == filters[0].Attrs().Handle:
		handle = own[0].Handle
	case slices.ContainsFunc(own, func(f *netlink.BpfFilter) bool { return f.Handle == handle }):
		handle = handles[1]
	}
	if err := put(hook, handle, program); err != nil {
		return err
	}
	for _, previous := range own {
		if previous.Handle == handle {
			continue
		}
		if err := remove(previous); err != nil {
			return err
		}
	}
	return nil
}

// put adds the filter, or replaces that of the same handle in one step.
func put(hook Hook, handle uint32, program int) error {
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: hook.Interface,
			Parent:    uint32(hook.Direction),
			Handle:    handle,
			Priority:  priority,
			Protocol:  unix.ETH_P_ALL,
		},
		Fd:           program,
		Name:         hook.Name,
		DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("add filter %s: %w; it needs the kernel's cls_bpf (CONFIG_NET_CLS_BPF)", hook.Name, err)
	}
	return nil
}

// Attached reports whether a program of ours is at the hook.
func Attached(hook Hook) (bool, error) {
	filters, err := list(hook)
	return len(ours(hook, filters)) > 0, err
}

// Detach takes our program away, and the qdisc with the last filter of all. It
// succeeds where there is nothing of ours, also where the interface is gone.
func Detach(hook Hook) error {
	filters, err := list(hook)
	if err != nil {
		return err
	}
	own := ours(hook, filters)
	for _, filter := range own {
		if err := remove(filter); err != nil {
			return err
		}
	}
	if len(own) == 0 {
		return nil
	}
	return removeQdisc(hook.Interface)
}

func remove(filter *netlink.BpfFilter) error {
	// The description of a filter that is deleted names no program.
	filter.Fd = -1
	if err := netlink.FilterDel(filter); err != nil && !gone(err) {
		return fmt.Errorf("delete filter %s: %w", filter.Name, err)
	}
	return nil
}

// gone reports whether the error says that there is no such interface, qdisc or
// filter. The kernel has several words for it.
func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

// list gives the filters of the hook in the order in which they run.
func list(hook Hook) ([]netlink.Filter, error) {
	filters, err := netlink.FilterList(device(hook.Interface), uint32(hook.Direction))
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	return filters, nil
}

func ours(hook Hook, filters []netlink.Filter) []*netlink.BpfFilter {
	var own []*netlink.BpfFilter
	for _, filter := range filters {
		bpf, ok := filter.(*netlink.BpfFilter)
		if ok && bpf.Name == hook.Name && slices.Contains(handles[:], bpf.Handle) {
			own = append(own, bpf)
		}
	}
	return own
}

func device(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

func qdisc(index int) netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
}

// addQdisc adds clsact unless it is there, by whomever.
func addQdisc(index int) error {
	err := netlink.QdiscAdd(qdisc(index))
	if errors.Is(err, unix.EEXIST) {
		return checkQdisc(index)
	}
	if err != nil {
		return fmt.Errorf("add the clsact qdisc: %w; it needs the kernel's sch_ingress (CONFIG_NET_SCH_INGRESS)", err)
	}
	return nil
}

// checkQdisc refuses the ingress qdisc, which takes the place of clsact and knows
// no egress.
func checkQdisc(index int) error {
	qdiscs, err := netlink.QdiscList(device(index))
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_CLSACT && q.Type() != "clsact" {
			return fmt.Errorf("a qdisc of kind %s takes the place of clsact: replace it (tc qdisc del dev IFACE %s)", q.Type(), q.Type())
		}
	}
	return nil
}

// removeQdisc removes clsact when no filter is left in it.
func removeQdisc(index int) error {
	for _, direction := range []Direction{Ingress, Egress} {
		filters, err := list(Hook{Interface: index, Direction: direction})
		if err != nil || len(filters) > 0 {
			return err
		}
	}
	if err := netlink.QdiscDel(qdisc(index)); err != nil && !gone(err) {
		return fmt.Errorf("delete the clsact qdisc: %w", err)
	}
	return nil
}
