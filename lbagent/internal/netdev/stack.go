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
	// lower is what a VLAN interface lies on.
	lower int
	// master is what the interface is a member of.
	master int
	// aggregate is true for a bond or team.
	aggregate bool
}

func describe(link netlink.Link) iface {
	attributes := link.Attrs()
	i := iface{
		link: Link{
			Name:  attributes.Name,
			Index: attributes.Index,
			MTU:   attributes.MTU,
			MAC:   attributes.HardwareAddr.String(),
			Up:    isUp(attributes),
		},
		master:    attributes.MasterIndex,
		aggregate: link.Type() == "bond" || link.Type() == "team",
	}
	// The index of an interface in another network namespace says nothing here.
	if link.Type() == "vlan" && attributes.NetNsID < 0 {
		i.lower = attributes.ParentIndex
	}
	return i
}

// stack gives every interface with its device and members, and replaces members
// among the selected by what they are members of.
func stack(interfaces map[int]iface, selected map[int]bool) ([]Link, map[int]bool) {
	members := map[int][]int{}
	uplinks := map[int]bool{}
	for index, i := range interfaces {
		if interfaces[i.master].aggregate {
			members[i.master] = append(members[i.master], index)
			index = i.master
		}
		if selected[i.link.Index] {
			uplinks[index] = true
		}
	}
	links := make([]Link, 0, len(interfaces))
	for _, i := range interfaces {
		link := i.link
		link.Device = deviceOf(interfaces, link.Index)
		link.Members = members[link.Device]
		slices.Sort(link.Members)
		links = append(links, link)
	}
	return links, uplinks
}

// deviceOf goes down from a VLAN, or a VLAN in a VLAN, to what is below.
func deviceOf(interfaces map[int]iface, index int) int {
	// The kernel stacks no more than eight.
	for range 8 {
		lower := interfaces[index].lower
		if _, exists := interfaces[lower]; !exists {
			break
		}
		index = lower
	}
	return index
}
