// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// vipBloom is the programs' Bloom filter of destinations, and the contents of the maps vip_filter and
// vip_parts. Bits are set before and cleared after the addresses that need them.
type vipBloom struct {
	forwarding.Bloom
	written, writtenParts bloomWords
	vips                  map[netip.Addr]struct{}
	ranges                map[forwarding.SourceRange]struct{}
}

func hostPrefix(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, address.BitLen())
}

func (d *Dataplane) addRangeToBloom(source forwarding.SourceRange) error {
	if _, found := d.bloom.ranges[source]; found {
		return nil
	}
	d.bloom.Add(source.Prefix)
	if err := d.writeBloom(); err != nil {
		d.bloom.Remove(source.Prefix)
		return err
	}
	d.bloom.ranges[source] = struct{}{}
	return nil
}

func (d *Dataplane) writeBloom() error {
	b := d.bloom
	return errors.Join(
		writeWords(d.maps.VipFilter, bpf.DatapathMapVipFilter, b.Word, &b.written),
		writeWords(d.maps.VipParts, bpf.DatapathMapVipParts, b.PartWord, &b.writtenParts))
}

type bloomWords [forwarding.BloomWords]uint64

func writeWords(m *ebpf.Map, name string, want func(int) uint64, written *bloomWords) error {
	for i := range written {
		word := want(i)
		if word == written[i] {
			continue
		}
		if err := write(m, name, i, uint32(i), word); err != nil {
			return err
		}
		written[i] = word
	}
	return nil
}

func (d *Dataplane) restoreBloom() error {
	d.bloom = &vipBloom{vips: map[netip.Addr]struct{}{}, ranges: map[forwarding.SourceRange]struct{}{}}
	err := readMap(d.maps.Vips, func(key bpf.DatapathAddress, _ uint32) {
		address := decodeAddress(key)
		d.bloom.vips[address] = struct{}{}
		d.bloom.Add(hostPrefix(address))
	})
	if err != nil {
		return fmt.Errorf("read map vips: %w", err)
	}
	ranges := forwarding.NewState()
	if err := d.dumpSourceRanges(ranges); err != nil {
		return fmt.Errorf("read the prefixes of pools and aggregates: %w", err)
	}
	for source := range ranges.SourceRanges {
		if !source.Set.OfFrontends() {
			d.bloom.ranges[source] = struct{}{}
			d.bloom.Add(source.Prefix)
		}
	}
	err = readMap(d.maps.VipFilter, func(i uint32, word uint64) { d.bloom.written[i] = word })
	if err != nil {
		return fmt.Errorf("read map vip_filter: %w", err)
	}
	err = readMap(d.maps.VipParts, func(i uint32, word uint64) { d.bloom.writtenParts[i] = word })
	if err != nil {
		return fmt.Errorf("read map vip_parts: %w", err)
	}
	return errors.Join(d.writeBloom(), d.recordAggregates(forwarding.Aggregates))
}
