// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// sourceSetBits stand in front of the bits of a prefix.
const sourceSetBits = 32

// rangeMap gives the map of the range's family, its name, and the key in it.
func (d *Dataplane) rangeMap(source program.SourceRange) (*ebpf.Map, string, any) {
	address, bits := source.Prefix.Addr(), uint32(sourceSetBits+source.Prefix.Bits())
	if address.Is4() {
		return d.maps.SourceRanges4, bpf.DatapathMapSourceRanges4, bpf.DatapathSourceRangeKey4{
			Prefixlen: bits, Set: uint32(source.Set), Address: encodeIPv4(address),
		}
	}
	return d.maps.SourceRanges6, bpf.DatapathMapSourceRanges6, bpf.DatapathSourceRangeKey6{
		Prefixlen: bits, Set: uint32(source.Set), Address: encodeAddress(address),
	}
}

func (d *Dataplane) dumpSourceRanges(state *program.State) error {
	add := func(set, bits uint32, address netip.Addr) {
		prefix := netip.PrefixFrom(address, int(bits)-sourceSetBits)
		state.SourceRanges[program.SourceRange{Set: program.SourceSet(set), Prefix: prefix}] = struct{}{}
	}
	return errors.Join(
		readMap(d.maps.SourceRanges4, func(key bpf.DatapathSourceRangeKey4, _ uint32) {
			add(key.Set, key.Prefixlen, decodeIPv4Word(key.Address))
		}),
		readMap(d.maps.SourceRanges6, func(key bpf.DatapathSourceRangeKey6, _ uint32) {
			add(key.Set, key.Prefixlen, decodeAddress(key.Address))
		}))
}
