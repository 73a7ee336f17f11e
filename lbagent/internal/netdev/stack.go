// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"slices"

	"github.com/vishvananda/netlink"
)

type iface struct {
	link Link
	// lower is the lower interface of a VLAN, and tag the VLAN tag of its frames.
	lower     int
	tag       VLANTag
	master    int
	aggregate bool
}

func describe(link netlink.Link) iface {
	attributes := link.Attrs()
	i := iface{
		link: Link{
			Name:     attributes.Name,
			Index:    attributes.Index,
			MTU:      attributes.MTU,
			MAC:      attributes.HardwareAddr.String(),
			Up:       isUp(attributes),
			Ethernet: attributes.EncapType == "ether" && len(attributes.HardwareAddr) == 6,
		},
		master:    attributes.MasterIndex,
		aggregate: link.Type() == "bond" || link.Type() == "team",
	}
	// An index in another network namespace is not usable.
	if link.Type() == "vlan" && attributes.NetNsID < 0 {
		i.lower = attributes.ParentIndex
	}
	if vlan, is := link.(*netlink.Vlan); is {
		i.tag = VLANTag{Protocol: uint16(vlan.VlanProtocol), ID: uint16(vlan.VlanId)}
	}
	return i
}

// stack returns every interface with its device and members. In the sets of selected and address-carrying
// interfaces it replaces members by their bond or team.
func stack(interfaces map[int]iface, selected, carrying map[int]bool) ([]Link, map[int]bool) {
	members := map[int][]int{}
	uplinks, carriers := map[int]bool{}, map[int]bool{}
	for index := range interfaces {
		whole := aggregateOf(interfaces, index)
		if whole != index {
			members[whole] = append(members[whole], index)
		}
		if selected[index] {
			uplinks[whole] = true
		}
		if carrying[index] {
			carriers[whole] = true
		}
	}
	links := make([]Link, 0, len(interfaces))
	for _, i := range interfaces {
		link := i.link
		link.Device, link.Tags = deviceOf(interfaces, link.Index)
		link.Members = members[link.Device]
		slices.Sort(link.Members)
		link.HasAddress = carriers[link.Index]
		links = append(links, link)
	}
	return links, uplinks
}

func aggregateOf(interfaces map[int]iface, index int) int {
	if master := interfaces[index].master; interfaces[master].aggregate {
		return master
	}
	return index
}

// deviceOf returns the interface below a VLAN, or below a VLAN in a VLAN, and the VLAN tags, outermost
// first.
func deviceOf(interfaces map[int]iface, index int) (device int, tags []VLANTag) {
	// The kernel stacks at most eight.
	for range 8 {
		lower := interfaces[index].lower
		if _, exists := interfaces[lower]; !exists {
			break
		}
		tags = slices.Insert(tags, 0, interfaces[index].tag)
		index = lower
	}
	return index, tags
}
