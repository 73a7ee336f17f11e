// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

// device is what the program must know of an uplink.
type device struct {
	mac uint64
	// transmits says that the driver sends frames that its XDP program returns
	// or that were redirected to it.
	transmits bool
}

// inspect reads what the kernel says of the uplink.
func inspect(uplink Uplink) (device, error) {
	iface, err := net.InterfaceByIndex(uplink.Index)
	if err != nil {
		return device{}, fmt.Errorf("find interface %s with index %d: %w", uplink.Name, uplink.Index, err)
	}
	d := device{mac: encodeMAC(iface.HardwareAddr)}
	if d.mac == 0 {
		return device{}, fmt.Errorf("interface %s has no Ethernet address; only Ethernet interfaces can be uplinks", uplink.Name)
	}
	driver, err := driverOf(iface.Name)
	if err != nil {
		return device{}, fmt.Errorf("read the driver of interface %s: %w", uplink.Name, err)
	}
	// Unless the other end runs an XDP program too, which cannot be seen from
	// here, veth keeps such frames or loses them without a trace.
	d.transmits = driver != "veth"
	return d, nil
}

// transmits tells whether all devices do: the program has one setting for them.
func transmits(devices map[int]device) bool {
	for _, d := range devices {
		if !d.transmits {
			return false
		}
	}
	return true
}

// driverOf is empty where the driver does not tell.
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

// inspectAll gives the devices that can be uplinks, and what is wrong with the
// others, by interface index.
func inspectAll(uplinks []Uplink) (map[int]device, map[int]error) {
	devices, errs := map[int]device{}, map[int]error{}
	var macs []uint64
	for _, uplink := range uplinks {
		d, err := inspect(uplink)
		if err == nil && !slices.Contains(macs, d.mac) {
			macs = append(macs, d.mac)
		}
		if err == nil && len(macs) > int(bpf.DatapathShapeUPLINK_MACS) {
			err = fmt.Errorf("interface %s is one too many: uplinks may have %d different Ethernet addresses",
				uplink.Name, bpf.DatapathShapeUPLINK_MACS)
			macs = macs[:bpf.DatapathShapeUPLINK_MACS]
		}
		if err != nil {
			errs[uplink.Index] = err
			continue
		}
		devices[uplink.Index] = d
	}
	return devices, errs
}

// uplinkSettings puts the devices into the node's settings. With former, the
// addresses set before stay as far as there is room.
func uplinkSettings(settings bpf.DatapathSelf, devices map[int]device, former bool) bpf.DatapathSelf {
	var macs []uint64
	noTransmit := uint32(bpf.DatapathSelfFlagSELF_NO_TRANSMIT)
	settings.Flags &^= noTransmit
	if !transmits(devices) {
		settings.Flags |= noTransmit
	}
	for _, d := range devices {
		macs = append(macs, d.mac)
	}
	if former {
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
