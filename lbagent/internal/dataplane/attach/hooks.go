// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Mode is where the XDP program runs.
type Mode string

const (
	// Native means the driver, before the kernel allocates anything.
	Native Mode = "native"
	// Generic means the kernel, after it: slower, but any interface can.
	Generic Mode = "generic"
)

// ErrForeignProgram means that an interface carries an XDP program that is not ours. It is left
// alone.
var ErrForeignProgram = errors.New("another XDP program is attached")

// Hooks are the places of a node at which programs are attached.
type Hooks struct {
	// Directory has the pins; it is in a bpf file system.
	Directory string
	// Clsact has filters of clsact used where there is tcx, too.
	Clsact bool
}

func (h Hooks) pin(ifindex int, kind Kind) Pin { return newPin(h.Directory, ifindex, kind) }

// hook is a place where packets pass in the kernel's stack, and what attaches there:
// tcx, or a filter of clsact where the kernel is older.
type hook struct {
	tcx    ebpf.AttachType
	link   Kind
	filter Kind
}

var (
	ingressHook = hook{ebpf.AttachTCXIngress, linkIngress, filterIngress}
	egressHook  = hook{ebpf.AttachTCXEgress, linkEgress, filterEgress}
)

// Ingress attaches a program to what an interface receives, behind XDP.
func (h Hooks) Ingress(ifindex int, program *ebpf.Program) error {
	return h.attach(ifindex, ingressHook, program)
}

// Egress attaches a program to what an interface sends.
func (h Hooks) Egress(ifindex int, program *ebpf.Program) error {
	return h.attach(ifindex, egressHook, program)
}

// attach attaches in front of other programs: those of a CNI must see replies as the VIP's.
func (h Hooks) attach(ifindex int, at hook, program *ebpf.Program) error {
	for _, kind := range []Kind{at.link, at.filter} {
		if found, err := h.pin(ifindex, kind).update(program); found || err != nil {
			return err
		}
	}
	if h.Clsact {
		return h.pin(ifindex, at.filter).attachFilter(program)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: at.tcx, Anchor: link.Head()})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return h.pin(ifindex, at.filter).attachFilter(program)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", at.link, err)
	}
	return h.pin(ifindex, at.link).keep(l)
}

// Result is what became of attaching the XDP program to a device.
type Result struct {
	// Mode is empty where the program is not attached.
	Mode Mode
	// NativeErr is why Mode is Generic, where it was attached now.
	NativeErr error
	Err       error
}

// XDP attaches a program to a device, and to its members where it is a bond. It keeps the mode of a
// link that is there, else tries native, then generic.
func (h Hooks) XDP(device int, members []int, program *ebpf.Program) Result {
	for _, kind := range []Kind{linkNative, linkGeneric} {
		found, err := h.pin(device, kind).update(program)
		if found {
			return Result{Mode: modeOf(kind), Err: err}
		}
		if err != nil {
			return Result{Err: err}
		}
	}
	// A bond refuses the program while a member has one, as of the time when it
	// was an uplink itself.
	for _, member := range members {
		for _, kind := range []Kind{linkNative, linkGeneric} {
			if err := h.pin(member, kind).detach(); err != nil {
				return Result{Err: err}
			}
		}
	}
	nativeErr := h.attachXDP(device, linkNative, link.XDPDriverMode, program)
	if nativeErr == nil {
		return Result{Mode: Native}
	}
	if errors.Is(nativeErr, ErrForeignProgram) {
		return Result{Err: nativeErr}
	}
	if err := h.attachXDP(device, linkGeneric, link.XDPGenericMode, program); err != nil {
		return Result{Err: errors.Join(nativeErr, err)}
	}
	return Result{Mode: Generic, NativeErr: nativeErr}
}

func modeOf(kind Kind) Mode {
	if kind == linkNative {
		return Native
	}
	return Generic
}

func (h Hooks) attachXDP(ifindex int, kind Kind, mode link.XDPAttachFlags, program *ebpf.Program) error {
	l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: ifindex, Flags: mode})
	// EEXIST: a program is attached in another mode.
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s: %w; detach it (ip link set dev IFACE xdp off) or choose another uplink", kind, ErrForeignProgram)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return h.pin(ifindex, kind).keep(l)
}

// Wanted are the indexes of the interfaces that keep what they have.
type Wanted struct {
	// Requests keep programs for what comes in, Replies for what goes out.
	Requests, Replies map[int]bool
	// Tags keep the features turned off that take VLAN tags off.
	Tags map[int]bool
}

func (w *Wanted) has(p Pin) bool {
	switch p.Kind {
	case linkEgress, filterEgress:
		return w.Replies[p.Interface]
	case tagOffload, serviceTagOffload:
		return w.Tags[p.Interface]
	}
	return w.Requests[p.Interface]
}

// DetachOthers detaches all that is not wanted, requests before replies.
func (h Hooks) DetachOthers(wanted Wanted) error {
	pins, err := Pins(h.Directory)
	if err != nil {
		return err
	}
	for _, kind := range detachOrder {
		for _, pin := range pins {
			if pin.Kind != kind || wanted.has(pin) {
				continue
			}
			if err := pin.detach(); err != nil {
				return err
			}
		}
	}
	return nil
}
