// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	tcx "github.com/cilium/ebpf/link"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	programs "github.com/millrace-lb/millrace/bpf"
)

// filter holds the BPF programs that answer ARP and Neighbor Discovery for VIPs in the kernel and pass the
// remaining requests to the sockets (l2_responder.c). It is an optimization: without it, or if the VIPs do not
// fit, the sockets receive all requests and look the targets up.
type filter struct {
	objects   programs.L2ResponderObjects
	responder tcx.Link
	addresses map[netip.Addr]bool
}

func newFilter(own net.HardwareAddr) (*filter, error) {
	f := &filter{addresses: map[netip.Addr]bool{}}
	spec, err := programs.LoadL2Responder()
	if err == nil {
		err = spec.Variables["own_mac"].Set([6]byte(own))
	}
	if err == nil {
		err = spec.LoadAndAssign(&f.objects, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("load the program that filters requests (capability BPF): %w", err)
	}
	return f, nil
}

// attachResponder attaches the program that answers in the kernel, active from the first heartbeat. Before Linux
// 6.6, which has no tcx, the sockets answer. The attachment ends with the process.
func (f *filter) attachResponder(index int) error {
	attached, err := tcx.AttachTCX(tcx.TCXOptions{
		Interface: index, Program: f.objects.Respond, Attach: ebpf.AttachTCXIngress, Anchor: tcx.Head(),
	})
	switch {
	case errors.Is(err, tcx.ErrNotSupported):
		return nil
	case err != nil:
		return fmt.Errorf("attach the program that answers requests (capability NET_ADMIN): %w", err)
	}
	f.responder = attached
	return nil
}

// heartbeat records a heartbeat for the kernel program. Without one it stops answering after the period in which
// other nodes wait for this node's heartbeat.
func (f *filter) heartbeat() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the kernel's time: %w", err)
	}
	if err := f.objects.AgentHeartbeat.Put(uint32(0), uint64(now.Nano())); err != nil {
		return fmt.Errorf("update the heartbeat of the kernel's responder: %w", err)
	}
	return nil
}

// set replaces the VIPs. Removals precede additions to free map entries.
func (f *filter) set(addresses []netip.Addr) error {
	wanted := make(map[netip.Addr]bool, len(addresses))
	for _, address := range addresses {
		wanted[address] = true
	}
	for address := range f.addresses {
		if wanted[address] {
			continue
		}
		if err := f.objects.AnnouncedVips.Delete(address.As16()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove VIP %s from the announced addresses: %w", address, err)
		}
		delete(f.addresses, address)
	}
	for address := range wanted {
		if f.addresses[address] {
			continue
		}
		if err := f.objects.AnnouncedVips.Put(address.As16(), uint8(1)); err != nil {
			return fmt.Errorf("add VIP %s to the %d announced addresses, of %d at most: %w",
				address, len(f.addresses), f.objects.AnnouncedVips.MaxEntries(), err)
		}
		f.addresses[address] = true
	}
	return nil
}

func (f *filter) limited() uint64 {
	count := uint64(0)
	_ = f.objects.LimitedRequests.Lookup(uint32(0), &count)
	return count
}

func (f *filter) replies() (count uint64) {
	var of []uint64
	_ = f.objects.RepliesSent.Lookup(uint32(0), &of)
	for _, one := range of {
		count += one
	}
	return count
}

func (f *filter) attach(conn *packet.Conn) error {
	return onSocket(conn, "filter requests", func(socket int) error {
		return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, f.objects.FilterRequests.FD())
	})
}

func (f *filter) close() {
	// Errors cannot be handled here; the sockets hold references to the program.
	if f.responder != nil {
		_ = f.responder.Close()
	}
	_ = f.objects.Close()
}

func onSocket(conn *packet.Conn, what string, set func(socket int) error) error {
	raw, err := conn.SyscallConn()
	if err == nil {
		controlled := raw.Control(func(socket uintptr) { err = set(int(socket)) })
		err = errors.Join(err, controlled)
	}
	if err != nil {
		return fmt.Errorf("%s on a packet socket: %w", what, err)
	}
	return nil
}

// Classic filters that pass all requests. Frames for other hosts are excluded: the interface may be
// promiscuous, and the kernel strips tags of unconfigured VLANs.
var (
	arpRequests = append(slices.Clone(forThisHost),
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 1, SkipFalse: 1},
		bpf.RetConstant{Val: 128},
		bpf.RetConstant{Val: 0},
	)
	solicitations = append(slices.Clone(forThisHost),
		bpf.LoadAbsolute{Off: 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: icmpv6, SkipFalse: 3},
		bpf.LoadAbsolute{Off: ipv6HeaderSize, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 135, SkipFalse: 1},
		bpf.RetConstant{Val: maxFilterLength},
		bpf.RetConstant{Val: 0},
	)
	forThisHost = []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: unix.PACKET_MULTICAST, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
)

// maxFilterLength is the read size in bytes, as in l2_responder.c. Longer packets count as malformed.
const maxFilterLength = 512

func assemble(filter []bpf.Instruction) ([]bpf.RawInstruction, error) {
	assembled, err := bpf.Assemble(filter)
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of a packet socket: %w", err)
	}
	return assembled, nil
}
