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

// putRange writes a prefix. Those of the pools are let through the filter first.
func (d *Dataplane) putRange(source program.SourceRange) error {
	if source.Set == program.Pools {
		if err := d.filterPool(source.Prefix); err != nil {
			return err
		}
	}
	m, name, key := d.rangeMap(source)
	return write(m, name, source, key, uint32(1))
}

func (d *Dataplane) deleteRange(source program.SourceRange) error {
	m, name, key := d.rangeMap(source)
	if err := remove(m, name, source, key); err != nil {
		return err
	}
	if _, found := d.filter.pools[source.Prefix]; !found || source.Set != program.Pools {
		return nil
	}
	delete(d.filter.pools, source.Prefix)
	d.filter.Remove(source.Prefix)
	return d.writeFilter()
}

func (d *Dataplane) filterPool(prefix netip.Prefix) error {
	if _, found := d.filter.pools[prefix]; found {
		return nil
	}
	d.filter.Add(prefix)
	if err := d.writeFilter(); err != nil {
		d.filter.Remove(prefix)
		return err
	}
	d.filter.pools[prefix] = struct{}{}
	return nil
}
