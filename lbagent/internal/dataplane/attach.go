// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

// Uplink is an interface by which client packets come in and replies leave.
type Uplink struct {
	Name  string
	Index int
}

// XDPMode is who runs the XDP program.
type XDPMode string

const (
	// Native means the driver, before the kernel allocates anything.
	Native XDPMode = "native"
	// Generic means the kernel, after it: slower, but any interface can.
	Generic XDPMode = "generic"
)

// Attachment is what Attach achieved on an uplink.
type Attachment struct {
	Interface string
	Index     int
	// Mode is empty where no XDP program of ours is attached.
	Mode XDPMode
	// Device is the index of the interface that runs the XDP program, and by
	// whose driver the program sends.
	Device int
	// Sends is true when that driver sends whatever the program hands it, from any
	// uplink; where it is false the kernel may have to.
	Sends bool
	// NativeErr is why Mode is Generic, where this process attached it.
	NativeErr error
	// Err is nil where all programs are attached and current.
	Err error
}

// Attachments is the outcome of the last Attach, by name of the interface.
func (d *Dataplane) Attachments() []Attachment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.attachments)
}

// Attach brings the programs onto these uplinks and takes them off all others.
// Programs already there, also of a former process, are replaced without a gap.
// An uplink that fails does not keep others from being attached; the errors are
// joined, and each is also in its Attachment. At most 8 different MAC addresses
// are possible.
func (d *Dataplane) Attach(uplinks []Uplink) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	pins, err := pinnedLinks(d.linkDir)
	if err != nil {
		return err
	}
	devices, errs := inspectAll(uplinks)
	// Former addresses stay until former uplinks are detached.
	if err := d.writeSettings(uplinkSettings(d.self, devices, true)); err != nil {
		return err
	}
	if err := d.set.catchUp(); err != nil {
		return fmt.Errorf("copy connections: %w", err)
	}
	d.attachments = d.attachments[:0:0]
	for _, uplink := range uplinks {
		attachment := Attachment{Interface: uplink.Name, Index: uplink.Index, Err: errs[uplink.Index]}
		if attachment.Err == nil {
			d.attachOne(&attachment)
			attachment.Device = uplink.Index
			attachment.Sends = attachment.Mode == Native && transmits(devices)
		}
		d.attachments = append(d.attachments, attachment)
	}
	slices.SortFunc(d.attachments, func(a, b Attachment) int { return cmp.Compare(a.Interface, b.Interface) })
	err = errors.Join(d.detachOthers(pins), d.writeUplinks(devices),
		d.writeSettings(uplinkSettings(d.self, devices, false)))
	for _, attachment := range d.attachments {
		err = errors.Join(err, attachment.Err)
	}
	if err != nil {
		return err
	}
	// Only now no program writes the former maps any more.
	if err := d.set.catchUp(); err != nil {
		return fmt.Errorf("copy connections: %w", err)
	}
	d.set.forgetFormer()
	return nil
}

// attachOne attaches replies first, so that no request comes in whose reply could
// not be translated.
func (d *Dataplane) attachOne(a *Attachment) {
	a.Err = errors.Join(
		d.attachTC(a.Index, egressHook, d.programs.Egress),
		d.attachTC(a.Index, ingressHook, d.programs.HandedOver),
	)
	if a.Err == nil {
		a.Err = d.attachXDP(a)
	}
	if a.Err == nil {
		return
	}
	a.Err = fmt.Errorf("attach to interface %s: %w", a.Interface, a.Err)
	if a.Mode == "" {
		a.Err = errors.Join(a.Err, d.detachAll(a.Index))
	}
}

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

// attachXDP keeps the mode of a link that is there, else tries native, then generic.
func (d *Dataplane) attachXDP(a *Attachment) error {
	for _, kind := range []linkKind{linkNative, linkGeneric} {
		found, err := newLinkPin(d.linkDir, a.Index, kind).update(d.programs.Ingress)
		if found {
			a.Mode = modeOf(kind)
		}
		if found || err != nil {
			return err
		}
	}
	a.NativeErr = d.attachXDPMode(a.Index, linkNative, link.XDPDriverMode)
	if a.NativeErr == nil {
		a.Mode = Native
		return nil
	}
	if errors.Is(a.NativeErr, ErrForeignProgram) {
		return a.NativeErr
	}
	if err := d.attachXDPMode(a.Index, linkGeneric, link.XDPGenericMode); err != nil {
		return errors.Join(a.NativeErr, err)
	}
	a.Mode = Generic
	return nil
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

// detachOthers detaches from the interfaces that are no uplinks any more.
func (d *Dataplane) detachOthers(pins []linkPin) error {
	for _, pin := range pins {
		wanted := slices.ContainsFunc(d.attachments, func(a Attachment) bool { return a.Index == pin.ifindex })
		if wanted {
			continue
		}
		if err := d.detachAll(pin.ifindex); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dataplane) detachAll(ifindex int) error {
	for _, kind := range detachOrder {
		if err := newLinkPin(d.linkDir, ifindex, kind).detach(); err != nil {
			return err
		}
	}
	return nil
}

// writeUplinks tells the program which interfaces take redirected frames.
func (d *Dataplane) writeUplinks(devices map[int]device) error {
	takes := map[uint32]bool{}
	for _, a := range d.attachments {
		if a.Mode == Native && devices[a.Index].transmits {
			takes[uint32(a.Index)] = true
		}
	}
	var stale []uint32
	err := readMap(d.maps.Uplinks, func(index, _ uint32) {
		if !takes[index] {
			stale = append(stale, index)
		}
	})
	if err != nil {
		return fmt.Errorf("read map uplinks: %w", err)
	}
	for _, index := range stale {
		if err := remove(d.maps.Uplinks, bpf.DatapathMapUplinks, index, index); err != nil {
			return err
		}
	}
	for index := range takes {
		err := write(d.maps.Uplinks, bpf.DatapathMapUplinks, index, index, uint32(bpf.DatapathUplinkFlagUPLINK_TAKES_FRAMES))
		if err != nil {
			return err
		}
	}
	return nil
}
