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

// All routers share the accept queue of the BGP port, so connections of other hosts could keep them out. The
// kernel drops packets of other sources before they are queued (SO_ATTACH_FILTER, socket(7)).

// maxInstructions bounds a filter to about 60 networks of IPv6 or 150 of IPv4. Beyond, all sources are
// admitted and the agent closes connections of unknown ones. Before Linux 6.7 a socket has 20 KiB for
// filters (net.core.optmem_max): during a replacement both filters count, and the kernel translates an
// instruction to up to two of 8 bytes.
const maxInstructions = 600

const sourceV4At, sourceV6At = 12, 8

// admission returns a filter that accepts packets of these networks, all of one family.
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
		// Built from the last word to the first, because a mismatch jumps over the rest of the block.
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
	if len(program) >= maxInstructions {
		return []bpf.Instruction{take}
	}
	return append(program, drop)
}

func admit(l *net.TCPListener, routers []netip.Prefix) error {
	err := onSocket(l, func(fd int) error { return socketfilter.Attach(fd, admission(routers)) })
	if err != nil {
		return fmt.Errorf("attach the source filter of the BGP port: %w", err)
	}
	return nil
}

func dropped(l *net.TCPListener) (drops uint32) {
	_ = onSocket(l, func(fd int) error {
		drops = socketfilter.Drops(fd)
		return nil
	})
	return drops
}
