// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// XDPInterface is an interface for an XDP program, with its state in the kernel.
type XDPInterface struct {
	Name string
	// Kind is the kernel's type of the interface, such as veth, and empty for most hardware interfaces.
	// Master is the type of its master.
	Kind, Master string
	Program      uint32
	// Native reports whether the driver supports XDP, if Known.
	Native, Known bool
}

// XDPInterfaces returns the interfaces of uplinks, with the members in place of a bond or team.
func XDPInterfaces(uplinks []Link) ([]XDPInterface, error) {
	var indexes []int
	for _, uplink := range uplinks {
		if len(uplink.Members) == 0 {
			indexes = append(indexes, uplink.Device)
		}
		indexes = append(indexes, uplink.Members...)
	}
	slices.Sort(indexes)
	var devices []XDPInterface
	for _, index := range slices.Compact(indexes) {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return nil, fmt.Errorf("read interface %d: %w", index, err)
		}
		attributes := link.Attrs()
		card := XDPInterface{Name: attributes.Name, Kind: kindOf(link)}
		if attributes.MasterIndex != 0 {
			master, err := netlink.LinkByIndex(attributes.MasterIndex)
			if err != nil {
				return nil, fmt.Errorf("read the master of interface %s: %w", card.Name, err)
			}
			card.Master = kindOf(master)
		}
		if attributes.Xdp != nil && attributes.Xdp.Attached {
			card.Program = attributes.Xdp.ProgId
		}
		if card.Native, card.Known, err = RunsPrograms(index); err != nil {
			return nil, err
		}
		devices = append(devices, card)
	}
	return devices, nil
}

func kindOf(link netlink.Link) string {
	if kind := link.Type(); kind != "device" {
		return kind
	}
	return ""
}
