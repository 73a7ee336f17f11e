// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"

	"github.com/millrace-lb/millrace/bpf"
)

func (d *Dataplane) putVIP(address netip.Addr) error {
	if _, found := d.bloom.vips[address]; !found {
		d.bloom.Add(hostPrefix(address))
		if err := d.writeBloom(); err != nil {
			d.bloom.Remove(hostPrefix(address))
			return err
		}
		d.bloom.vips[address] = struct{}{}
	}
	return write(d.maps.Vips, bpf.DatapathMapVips, address, encodeAddress(address), uint32(1))
}

func (d *Dataplane) deleteVIP(address netip.Addr) error {
	if err := remove(d.maps.Vips, bpf.DatapathMapVips, address, encodeAddress(address)); err != nil {
		return err
	}
	if _, found := d.bloom.vips[address]; found {
		delete(d.bloom.vips, address)
		d.bloom.Remove(hostPrefix(address))
	}
	return d.writeBloom()
}
