// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"slices"

	"github.com/vishvananda/netlink"
)

// iface is an interface and its place among those above and below it. Indexes
// are zero where there is none.
type iface struct {
	link Link
	// lower is what a VLAN interface lies on, and tag what its frames have there.
	lower int
	tag   VLANTag
	// master is what the interface is a member of.
	master int
	// aggregate is true for a bond or team.
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
	// The index of an interface in another network namespace says nothing here.
	if link.Type() == "vlan" && attributes.NetNsID < 0 {
		i.lower = attributes.ParentIndex
	}
	if vlan, is := link.(*netlink.Vlan); is {
		i.tag = VLANTag{Protocol: uint16(vlan.VlanProtocol), ID: uint16(vlan.VlanId)}
	}
	return i
}

// stack gives every interface with its device and members, and replaces members
// among the selected, and those that carry addresses, by what they are members of.
func stack(interfaces map[int]iface, selected, carrying map[int]bool) ([]Link, map[int]bool) {
	members := map[int][]int{}
	uplinks, carriers := map[int]bool{}, map[int]bool{}
	for index := range interfaces {
		whole := wholeOf(interfaces, index)
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
		link.Carries = carriers[link.Index]
		links = append(links, link)
	}
	return links, uplinks
}

// wholeOf is the bond or team that the interface is a member of, else the interface itself.
func wholeOf(interfaces map[int]iface, index int) int {
	if master := interfaces[index].master; interfaces[master].aggregate {
		return master
	}
	return index
}

// deviceOf goes down from a VLAN, or a VLAN in a VLAN, to what is below. It returns the tags of
// the VLANs, outermost first.
func deviceOf(interfaces map[int]iface, index int) (device int, tags []VLANTag) {
	// The kernel stacks no more than eight.
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
