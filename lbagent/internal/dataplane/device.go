// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

type device struct {
	name string
	// macs are the distinct addresses of the uplink, its device and the device's members.
	macs []uint64
	// transmits reports whether the driver sends frames returned by XDP or redirected to it.
	transmits bool
	// tagsBeside is the reason why XDP may not see a VLAN uplink's tags, or nil. native is the attached mode.
	tagsBeside error
	native     bool
}

// sends reports whether the program may transmit by XDP. In generic mode a tag in the metadata would be added
// to that of the next hop.
func (d *device) sends() bool { return d.transmits && (d.tagsBeside == nil || d.native) }

func inspect(uplink *Uplink, vethTransmit bool) (device, error) {
	result := device{transmits: true}
	for _, index := range append([]int{uplink.Index, uplink.device()}, uplink.Members...) {
		iface, err := net.InterfaceByIndex(index)
		if err != nil {
			return device{}, fmt.Errorf("find interface %d: %w", index, err)
		}
		if index == uplink.device() {
			result.name = iface.Name
		}
		mac := encodeMAC(iface.HardwareAddr)
		if mac == 0 {
			return device{}, fmt.Errorf("interface %s has no Ethernet address; only Ethernet interfaces can be uplinks", iface.Name)
		}
		if !slices.Contains(result.macs, mac) {
			result.macs = append(result.macs, mac)
		}
		driver, err := driverOf(iface.Name)
		if err != nil {
			return device{}, fmt.Errorf("read the driver of interface %s: %w", iface.Name, err)
		}
		// Without an XDP program at the peer, which cannot be detected from here, veth drops such frames.
		result.transmits = result.transmits && (vethTransmit || driver != "veth")
	}
	return result, nil
}

func sendFlags(devices map[int]device) (flags uint32) {
	for _, d := range devices {
		if !d.sends() {
			flags |= uint32(bpf.DatapathSelfFlagSELF_NO_TRANSMIT)
		}
		if d.tagsBeside != nil {
			flags |= uint32(bpf.DatapathSelfFlagSELF_VLAN_STRIPPED)
		}
	}
	return flags
}

// driverOf returns "" if the driver does not support the query.
func driverOf(name string) (string, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(socket)
	info, err := unix.IoctlGetEthtoolDrvinfo(socket, name)
	if err == unix.EOPNOTSUPP {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return unix.ByteSliceToString(info.Driver[:]), nil
}

func inspectAll(uplinks []Uplink, vethTransmit bool) (map[int]device, map[int]error) {
	devices, errs := map[int]device{}, map[int]error{}
	var macs []uint64
	for i := range uplinks {
		uplink := &uplinks[i]
		d, err := inspect(uplink, vethTransmit)
		all := slices.Clone(macs)
		for _, mac := range d.macs {
			if !slices.Contains(all, mac) {
				all = append(all, mac)
			}
		}
		if err == nil && len(all) > int(bpf.DatapathShapeUPLINK_MACS) {
			err = fmt.Errorf("interface %s exceeds the limit: uplinks may have %d different Ethernet addresses",
				uplink.Name, bpf.DatapathShapeUPLINK_MACS)
		}
		if err != nil {
			errs[uplink.Index] = err
			continue
		}
		macs = all
		devices[uplink.Index] = d
	}
	return devices, errs
}

// uplinkSettings returns settings for the devices. With previous, old addresses are retained if they fit.
func uplinkSettings(settings bpf.DatapathSelf, devices map[int]device, previous bool) bpf.DatapathSelf {
	var macs []uint64
	settings.Flags &^= uint32(bpf.DatapathSelfFlagSELF_NO_TRANSMIT | bpf.DatapathSelfFlagSELF_VLAN_STRIPPED)
	settings.Flags |= sendFlags(devices)
	for _, d := range devices {
		macs = append(macs, d.macs...)
	}
	if previous {
		macs = append(macs, settings.UplinkMac[:]...)
	}
	settings.UplinkMac = [bpf.DatapathShapeUPLINK_MACS]uint64{}
	n := 0
	for _, mac := range macs {
		if mac != 0 && n < len(settings.UplinkMac) && !slices.Contains(settings.UplinkMac[:n], mac) {
			settings.UplinkMac[n] = mac
			n++
		}
	}
	return settings
}
