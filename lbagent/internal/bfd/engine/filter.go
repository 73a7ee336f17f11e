// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"

	"github.com/millrace-lb/millrace/lbagent/internal/socketfilter"
)

// A listener is one queue for all its sessions. Packets for no session are dropped before it
// (SO_ATTACH_FILTER, socket(7)), so that a flood cannot displace the peers' packets.

// Offsets in the UDP payload and in the IP headers.
const (
	yourDiscriminatorAt = 8 + 8
	ttlV4At, sourceV4At = 8, 12
	ttlV6At, sourceV6At = 7, 8
)

// maxInstructions bounds a filter that checks sources, enough for 42 IPv6 or 75 IPv4 sessions; larger ones
// check the TTL only. Before Linux 6.7 a socket has 20 KiB for filters (net.core.optmem_max), shared by old
// and new filter during a replacement, and the kernel translates an instruction into up to two of 8 bytes.
const maxInstructions = 600

// admission defines the accepted packets of a listener: those of a session's source with its minimum TTL, and
// those with our discriminator from any source (RFC 5880, section 6.3).
type admission struct {
	// sources maps addresses to their minimum TTL.
	sources        map[netip.Addr]uint8
	discriminators map[uint32]bool
	// ttl is the minimum of all sources.
	ttl uint8
}

// admission returns the admission of a kind. It includes sessions in shutdown, whose peers acknowledge it.
func (e *Engine) admission(k kind) admission {
	a := admission{sources: map[netip.Addr]uint8{}, discriminators: map[uint32]bool{}, ttl: sentTTL}
	for d, s := range e.discriminator {
		if s.kind() != k {
			continue
		}
		source, ttl := s.peer.Address.WithZone(""), s.minTTL()
		if have, found := a.sources[source]; found {
			ttl = min(ttl, have)
		}
		a.sources[source], a.discriminators[d] = ttl, true
		a.ttl = min(a.ttl, ttl)
	}
	return a
}

// minTTL returns the minimum TTL of the peer's packets: 255 for single-hop sessions (RFC 5881, section 5).
func (s *session) minTTL() uint8 {
	if s.peer.Multihop {
		return s.peer.MinimumTTL
	}
	return sentTTL
}

func (a admission) program(v6 bool) []bpf.Instruction {
	const ttlSlot, sourceSlot = 0, 1
	take, drop := bpf.RetConstant{Val: ^uint32(0)}, bpf.RetConstant{}
	ttlAt, sourceAt, words := uint32(ttlV4At), uint32(sourceV4At), 1
	if v6 {
		ttlAt, sourceAt, words = ttlV6At, sourceV6At, 4
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: socketfilter.NetworkHeader + ttlAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: uint32(a.ttl), SkipTrue: 1},
		drop,
		bpf.StoreScratch{Src: bpf.RegA, N: ttlSlot},
	}
	atLeast := slices.Clone(program)
	// The load fails for a truncated packet, which is dropped.
	program = append(program, bpf.LoadAbsolute{Off: yourDiscriminatorAt, Size: 4})
	for _, d := range slices.Sorted(maps.Keys(a.discriminators)) {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: d, SkipTrue: 1}, take)
	}
	for i := range words {
		program = append(program,
			bpf.LoadAbsolute{Off: socketfilter.NetworkHeader + sourceAt + 4*uint32(i), Size: 4},
			bpf.StoreScratch{Src: bpf.RegA, N: sourceSlot + i})
	}
	for _, source := range slices.SortedFunc(maps.Keys(a.sources), netip.Addr.Compare) {
		octets := source.AsSlice()
		// A mismatch skips the remaining words, of two instructions each, and the four at the end.
		for i := range words {
			program = append(program, bpf.LoadScratch{Dst: bpf.RegA, N: sourceSlot + i}, bpf.JumpIf{
				Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(octets[4*i:]), SkipTrue: uint8(2*(words-1-i) + 4),
			})
		}
		program = append(program,
			bpf.LoadScratch{Dst: bpf.RegA, N: ttlSlot},
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: uint32(a.sources[source]), SkipTrue: 1},
			drop, take)
	}
	if len(program) >= maxInstructions {
		return append(atLeast, take)
	}
	return append(program, drop)
}

func admit(fd int, a admission, v6 bool) error {
	if err := socketfilter.Attach(fd, a.program(v6)); err != nil {
		return fmt.Errorf("filter packets without a BFD session: %w", err)
	}
	return nil
}
