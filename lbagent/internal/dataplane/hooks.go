// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// hook is a place where packets pass in the kernel's stack, and what attaches there:
// tcx, or a filter of clsact where the kernel is older.
type hook struct {
	tcx    ebpf.AttachType
	link   linkKind
	filter linkKind
}

var (
	ingressHook = hook{ebpf.AttachTCXIngress, linkIngress, filterIngress}
	egressHook  = hook{ebpf.AttachTCXEgress, linkEgress, filterEgress}
)

// attachTC attaches in front of other programs: those of a CNI must see replies
// as the VIP's.
func (d *Dataplane) attachTC(ifindex int, h hook, prog *ebpf.Program) error {
	for _, kind := range []linkKind{h.link, h.filter} {
		if found, err := newLinkPin(d.linkDir, ifindex, kind).update(prog); found || err != nil {
			return err
		}
	}
	if d.clsact {
		return newLinkPin(d.linkDir, ifindex, h.filter).attachFilter(prog)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: h.tcx, Anchor: link.Head()})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return newLinkPin(d.linkDir, ifindex, h.filter).attachFilter(prog)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", h.link, err)
	}
	return newLinkPin(d.linkDir, ifindex, h.link).keep(l)
}

// xdpResult is what became of attaching the XDP program to a device.
type xdpResult struct {
	// mode is empty where the program is not attached.
	mode      XDPMode
	nativeErr error
	err       error
}

// attachXDP keeps the mode of a link that is there, else tries native, then generic.
func (d *Dataplane) attachXDP(device int, members []int) xdpResult {
	for _, kind := range []linkKind{linkNative, linkGeneric} {
		found, err := newLinkPin(d.linkDir, device, kind).update(d.programs.Ingress)
		if found {
			return xdpResult{mode: modeOf(kind), err: err}
		}
		if err != nil {
			return xdpResult{err: err}
		}
	}
	// A bond refuses the program while a member has one, as of the time when it
	// was an uplink itself.
	for _, member := range members {
		for _, kind := range []linkKind{linkNative, linkGeneric} {
			if err := newLinkPin(d.linkDir, member, kind).detach(); err != nil {
				return xdpResult{err: err}
			}
		}
	}
	nativeErr := d.attachXDPMode(device, linkNative, link.XDPDriverMode)
	if nativeErr == nil {
		return xdpResult{mode: Native}
	}
	if errors.Is(nativeErr, ErrForeignProgram) {
		return xdpResult{err: nativeErr}
	}
	if err := d.attachXDPMode(device, linkGeneric, link.XDPGenericMode); err != nil {
		return xdpResult{err: errors.Join(nativeErr, err)}
	}
	return xdpResult{mode: Generic, nativeErr: nativeErr}
}

func modeOf(kind linkKind) XDPMode {
	if kind == linkNative {
		return Native
	}
	return Generic
}

func (d *Dataplane) attachXDPMode(ifindex int, kind linkKind, mode link.XDPAttachFlags) error {
	l, err := link.AttachXDP(link.XDPOptions{Program: d.programs.Ingress, Interface: ifindex, Flags: mode})
	// EEXIST: a program is attached in another mode.
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s: %w; detach it (ip link set dev IFACE xdp off) or choose another uplink", kind, ErrForeignProgram)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return newLinkPin(d.linkDir, ifindex, kind).keep(l)
}
