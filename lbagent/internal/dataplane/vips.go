// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net/netip"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// vipFilter is the filter that keeps packets for others out of the way, and what
// the map holds of it. A bit is set before an address that needs it is written,
// and cleared after.
type vipFilter struct {
	program.Filter
	written [program.FilterWords]uint64
	// vips are the addresses that are in the filter.
	vips map[netip.Addr]struct{}
	// pools are the prefixes of pools that are in it.
	pools map[netip.Prefix]struct{}
}

func hostPrefix(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, address.BitLen())
}

func (d *Dataplane) putVIP(address netip.Addr) error {
	if _, found := d.filter.vips[address]; !found {
		d.filter.Add(hostPrefix(address))
		if err := d.writeFilter(); err != nil {
			d.filter.Remove(hostPrefix(address))
			return err
		}
		d.filter.vips[address] = struct{}{}
	}
	return write(d.maps.Vips, bpf.DatapathMapVips, address, encodeAddress(address), uint32(1))
}

func (d *Dataplane) deleteVIP(address netip.Addr) error {
	if err := remove(d.maps.Vips, bpf.DatapathMapVips, address, encodeAddress(address)); err != nil {
		return err
	}
	if _, found := d.filter.vips[address]; found {
		delete(d.filter.vips, address)
		d.filter.Remove(hostPrefix(address))
	}
	return d.writeFilter()
}

// writeFilter writes the words of the filter that the map does not hold yet.
func (d *Dataplane) writeFilter() error {
	for i := range d.filter.written {
		word := d.filter.Word(i)
		if word == d.filter.written[i] {
			continue
		}
		if err := write(d.maps.VipFilter, bpf.DatapathMapVipFilter, i, uint32(i), word); err != nil {
			return err
		}
		d.filter.written[i] = word
	}
	return nil
}

// restoreFilter makes the filter that of the VIPs and pools in the maps.
func (d *Dataplane) restoreFilter() error {
	d.filter = &vipFilter{vips: map[netip.Addr]struct{}{}, pools: map[netip.Prefix]struct{}{}}
	err := readMap(d.maps.Vips, func(key bpf.DatapathAddress, _ uint32) {
		address := decodeAddress(key)
		d.filter.vips[address] = struct{}{}
		d.filter.Add(hostPrefix(address))
	})
	if err != nil {
		return fmt.Errorf("read map vips: %w", err)
	}
	ranges := program.NewState()
	if err := d.dumpSourceRanges(ranges); err != nil {
		return fmt.Errorf("read the prefixes of pools: %w", err)
	}
	for source := range ranges.SourceRanges {
		if source.Set == program.Pools {
			d.filter.pools[source.Prefix] = struct{}{}
			d.filter.Add(source.Prefix)
		}
	}
	err = readMap(d.maps.VipFilter, func(i uint32, word uint64) { d.filter.written[i] = word })
	if err != nil {
		return fmt.Errorf("read map vip_filter: %w", err)
	}
	return d.writeFilter()
}
