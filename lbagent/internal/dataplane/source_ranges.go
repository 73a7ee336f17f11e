// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// sourceSetBits is the length of the set's id, which precedes the address in a key.
const sourceSetBits = 32

func (d *Dataplane) rangeMap(source forwarding.SourceRange) (*ebpf.Map, string, any) {
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

func (d *Dataplane) dumpSourceRanges(state *forwarding.State) error {
	add := func(set, bits uint32, address netip.Addr) {
		prefix := netip.PrefixFrom(address, int(bits)-sourceSetBits)
		state.SourceRanges[forwarding.SourceRange{Set: forwarding.SourceSet(set), Prefix: prefix}] = struct{}{}
	}
	return errors.Join(
		readMap(d.maps.SourceRanges4, func(key bpf.DatapathSourceRangeKey4, _ uint32) {
			add(key.Set, key.Prefixlen, decodeIPv4Word(key.Address))
		}),
		readMap(d.maps.SourceRanges6, func(key bpf.DatapathSourceRangeKey6, _ uint32) {
			add(key.Set, key.Prefixlen, decodeAddress(key.Address))
		}))
}

// putRange writes a prefix. Prefixes of destinations are added to the filter first.
func (d *Dataplane) putRange(source forwarding.SourceRange) error {
	if !source.Set.OfFrontends() {
		if err := d.addRangeToBloom(source); err != nil {
			return err
		}
	}
	if err := d.recordAggregates(source.Set); err != nil {
		return err
	}
	m, name, key := d.rangeMap(source)
	return write(m, name, source, key, uint32(1))
}

func (d *Dataplane) deleteRange(source forwarding.SourceRange) error {
	m, name, key := d.rangeMap(source)
	if err := remove(m, name, source, key); err != nil {
		return err
	}
	if _, found := d.bloom.ranges[source]; !found {
		return nil
	}
	delete(d.bloom.ranges, source)
	d.bloom.Remove(source.Prefix)
	return errors.Join(d.writeBloom(), d.recordAggregates(source.Set))
}

// recordAggregates enables the programs' lookup of aggregates while the filter contains one, because it costs
// every packet to a host in the network of a VIP. Changes of other sets have no effect.
func (d *Dataplane) recordAggregates(changed forwarding.SourceSet) error {
	if changed != forwarding.Aggregates {
		return nil
	}
	settings := d.self
	settings.Flags &^= uint32(bpf.DatapathSelfFlagSELF_AGGREGATES)
	for source := range d.bloom.ranges {
		if source.Set == forwarding.Aggregates {
			settings.Flags |= uint32(bpf.DatapathSelfFlagSELF_AGGREGATES)
			break
		}
	}
	return d.writeSettings(settings)
}
