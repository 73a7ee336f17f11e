// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// vipBloom is the Bloom filter that keeps packets for others out of the way, and what
// the map vip_filter holds of it. A bit is set before an address that needs it is written,
// and cleared after.
type vipBloom struct {
	forwarding.Bloom
	written [forwarding.BloomWords]uint64
	// vips are the addresses that are in the filter.
	vips map[netip.Addr]struct{}
	// ranges are the prefixes of pools and aggregates that are in it.
	ranges map[forwarding.SourceRange]struct{}
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

// writeBloom writes the words of the filter that the map does not hold yet.
func (d *Dataplane) writeBloom() error {
	for i := range d.bloom.written {
		word := d.bloom.Word(i)
		if word == d.bloom.written[i] {
			continue
		}
		if err := write(d.maps.VipFilter, bpf.DatapathMapVipFilter, i, uint32(i), word); err != nil {
			return err
		}
		d.bloom.written[i] = word
	}
	return nil
}

// restoreBloom makes the filter that of the VIPs, pools and aggregates in the maps.
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
	return errors.Join(d.writeBloom(), d.noteAggregates(forwarding.Aggregates))
}
