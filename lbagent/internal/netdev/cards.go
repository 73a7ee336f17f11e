// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// Card is what the kernel tells of an interface on which an XDP program is to run.
type Card struct {
	Name string
	// Kind is the kernel's name of what it is, such as veth; empty for most cards. Master is that of
	// the interface that it belongs to.
	Kind, Master string
	// Program is the id of the XDP program that is there; 0: none.
	Program uint32
	// Native reports whether the driver runs XDP programs itself, where Known.
	Native, Known bool
}

// Cards are those of uplinks: members in place of what they form.
func Cards(uplinks []Link) ([]Card, error) {
	var indexes []int
	for _, uplink := range uplinks {
		if len(uplink.Members) == 0 {
			indexes = append(indexes, uplink.Device)
		}
		indexes = append(indexes, uplink.Members...)
	}
	slices.Sort(indexes)
	var cards []Card
	for _, index := range slices.Compact(indexes) {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return nil, fmt.Errorf("read interface %d: %w", index, err)
		}
		attributes := link.Attrs()
		card := Card{Name: attributes.Name, Kind: kindOf(link)}
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
		cards = append(cards, card)
	}
	return cards, nil
}

// kindOf is empty where the kernel does not say it: netlink then says device.
func kindOf(link netlink.Link) string {
	if kind := link.Type(); kind != "device" {
		return kind
	}
	return ""
}
