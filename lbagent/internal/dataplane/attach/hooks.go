// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Mode is the XDP mode.
type Mode string

const (
	// Native runs the program in the driver.
	Native Mode = "native"
	// Generic runs the program in the kernel's stack: slower, but supported by every interface.
	Generic Mode = "generic"
)

// ErrForeignProgram is returned if an interface has an XDP program that is not ours. It is not replaced.
var ErrForeignProgram = errors.New("another XDP program is attached")

// Hooks attaches programs to the interfaces of a node.
type Hooks struct {
	// Directory contains the pins; it is in a bpf file system.
	Directory string
	// Clsact uses clsact filters even if tcx is available.
	Clsact bool
}

func (h Hooks) pin(ifindex int, kind Kind) Pin { return newPin(h.Directory, ifindex, kind) }

type hook struct {
	tcx    ebpf.AttachType
	link   Kind
	filter Kind
}

var (
	ingressHook = hook{ebpf.AttachTCXIngress, linkIngress, filterIngress}
	egressHook  = hook{ebpf.AttachTCXEgress, linkEgress, filterEgress}
)

// Ingress attaches a program to received packets, after XDP.
func (h Hooks) Ingress(ifindex int, program *ebpf.Program) error {
	return h.attach(ifindex, ingressHook, program)
}

// Egress attaches a program to sent packets.
func (h Hooks) Egress(ifindex int, program *ebpf.Program) error {
	return h.attach(ifindex, egressHook, program)
}

// attach attaches before other programs, because those of a CNI must see replies with the VIP as source.
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

// Result is the result of Hooks.XDP.
type Result struct {
	// Mode is empty if the program is not attached.
	Mode Mode
	// NativeErr is the reason for Generic mode, if the program was newly attached.
	NativeErr error
	Err       error
}

// XDP attaches a program to a device or bond. It keeps a link's mode, else tries native, then generic.
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
	// A bond rejects the program while a member has one, which remains if the member was an uplink before.
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

// Wanted are the indexes of interfaces that stay attached.
type Wanted struct {
	// Requests keep ingress programs, Replies egress programs.
	Requests, Replies map[int]bool
	// Tags keep VLAN tag offload disabled.
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

// DetachOthers detaches all that is not wanted, ingress before egress.
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
