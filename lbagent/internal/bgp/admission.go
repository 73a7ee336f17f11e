// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"

	"github.com/millrace-lb/millrace/lbagent/internal/socketfilter"
)

// The queue of the BGP port is one for all routers: connections that nobody takes would keep the
// routers' out. So the kernel drops what comes from other addresses (SO_ATTACH_FILTER, socket(7)),
// before it takes room. Connections that are there keep the filter that they began with.

// mostInstructions bounds a filter: enough for 60 networks of IPv6, or 150 of IPv4. With more it
// lets all through, and untrusted hosts are closed. A socket has 20 KiB for filters before Linux
// 6.7 (net.core.optmem_max). While one replaces another both count, and the kernel makes up to two
// instructions of 8 bytes of each.
const mostInstructions = 600

// Offsets of the source in the IP headers.
const sourceV4At, sourceV6At = 12, 8

// admission is a filter that lets packets of these networks through, all of one family.
func admission(routers []netip.Prefix) []bpf.Instruction {
	const wordBits = 32
	take, drop := bpf.RetConstant{Val: ^uint32(0)}, bpf.RetConstant{}
	var program []bpf.Instruction
	for _, network := range slices.SortedFunc(slices.Values(routers), netip.Prefix.Compare) {
		at := uint32(sourceV4At)
		if network.Addr().Is6() {
			at = sourceV6At
		}
		octets := network.Masked().Addr().AsSlice()
		// From the last word to the first, for each skips what follows of the network where it
		// differs.
		block := []bpf.Instruction{take}
		for word := (network.Bits() - 1) / wordBits; word >= 0 && network.Bits() > 0; word-- {
			one := []bpf.Instruction{bpf.LoadAbsolute{Off: socketfilter.NetworkHeader + at + 4*uint32(word), Size: 4}}
			if bits := network.Bits() - word*wordBits; bits < wordBits {
				one = append(one, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(0) << (wordBits - bits)})
			}
			one = append(one, bpf.JumpIf{
				Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(octets[4*word:]), SkipTrue: uint8(len(block)),
			})
			block = append(one, block...)
		}
		program = append(program, block...)
	}
	if len(program) >= mostInstructions {
		return []bpf.Instruction{take}
	}
	return append(program, drop)
}

// admit makes a listener drop what comes from other networks.
func admit(l *net.TCPListener, routers []netip.Prefix) error {
	err := onSocket(l, func(fd int) error { return socketfilter.Attach(fd, admission(routers)) })
	if err != nil {
		return fmt.Errorf("drop what untrusted hosts send to the BGP port: %w", err)
	}
	return nil
}

// dropped is how many packets a listener has dropped.
func dropped(l *net.TCPListener) (drops uint32) {
	_ = onSocket(l, func(fd int) error {
		drops = socketfilter.Drops(fd)
		return nil
	})
	return drops
}

func onSocket(l *net.TCPListener, do func(fd int) error) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	if err := raw.Control(func(fd uintptr) { failure = do(int(fd)) }); err != nil {
		return err
	}
	return failure
}
