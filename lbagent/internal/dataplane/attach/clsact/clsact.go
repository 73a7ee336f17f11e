// SPDX-License-Identifier: Apache-2.0

// Package clsact attaches BPF programs by the clsact qdisc and cls_bpf filters, for kernels before 6.6, which
// lack tcx.
//
// Our filters have the lowest priority value, 1, and are identified by name. Filters of equal priority run
// newest first.
package clsact

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Direction is the direction of the packets.
type Direction uint32

const (
	// Ingress is for received packets.
	Ingress Direction = netlink.HANDLE_MIN_INGRESS
	// Egress is for sent packets.
	Egress Direction = netlink.HANDLE_MIN_EGRESS
)

// Hook is the place of a program.
type Hook struct {
	// Interface is an interface index.
	Interface int
	Direction Direction
	// Name is the program's name, which identifies our filters.
	Name string
}

const priority = 1

// Two handles, so that a new filter can be added next to the old one.
var handles = [2]uint32{0x4d4c, 0x4d4d}

// Attach makes the program with this descriptor the first at the hook, and replaces ours without a gap.
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
			return fmt.Errorf("a filter of kind %s has priority %d, which Millrace needs: change its priority",
				filters[0].Type(), priority)
		}
	}
	own := isOurs(hook, filters)
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

// Attached reports whether our program is at the hook.
func Attached(hook Hook) (bool, error) {
	filters, err := list(hook)
	return len(isOurs(hook, filters)) > 0, err
}

// Detach removes our program and an empty qdisc. A missing program or interface is no error.
func Detach(hook Hook) error {
	filters, err := list(hook)
	if err != nil {
		return err
	}
	own := isOurs(hook, filters)
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
	// The description of a deleted filter contains no program.
	filter.Fd = -1
	if err := netlink.FilterDel(filter); err != nil && !gone(err) {
		return fmt.Errorf("delete filter %s: %w", filter.Name, err)
	}
	return nil
}

// gone reports whether an interface, qdisc or filter is missing, for which the kernel has several codes.
func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

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

func isOurs(hook Hook, filters []netlink.Filter) []*netlink.BpfFilter {
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

// checkQdisc rejects the ingress qdisc, which excludes clsact and has no egress.
func checkQdisc(index int) error {
	qdiscs, err := netlink.QdiscList(device(index))
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_CLSACT && q.Type() != "clsact" {
			return fmt.Errorf("a qdisc of kind %s is attached instead of clsact: remove it (tc qdisc del dev IFACE %s)", q.Type(), q.Type())
		}
	}
	return nil
}

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
