// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"maps"
	"reflect"
	"slices"
	"testing"
)

func TestStack(t *testing.T) {
	const eth0, eth1, eth2, bond0, vlan100, inner, bridge, plainVLAN, foreign = 2, 3, 4, 5, 6, 7, 8, 9, 10
	interfaces := map[int]iface{
		eth0:    {master: bond0},
		eth1:    {master: bond0},
		eth2:    {master: bridge},
		bond0:   {aggregate: true},
		vlan100: {lower: bond0, tag: VLANTag{0x88a8, 100}},
		inner:   {lower: vlan100, tag: VLANTag{0x8100, 5}},
		bridge:  {},
		// On a port of a bridge.
		plainVLAN: {lower: eth2, tag: VLANTag{0x8100, 7}},
		// On an interface in another namespace.
		foreign: {lower: 99},
	}
	for index, i := range interfaces {
		i.link.Index = index
		interfaces[index] = i
	}
	type place struct {
		device  int
		members []int
	}
	places := map[int]place{
		eth0: {eth0, nil}, eth1: {eth1, nil}, eth2: {eth2, nil}, bridge: {bridge, nil},
		bond0:     {bond0, []int{eth0, eth1}},
		vlan100:   {bond0, []int{eth0, eth1}},
		inner:     {bond0, []int{eth0, eth1}},
		plainVLAN: {eth2, nil},
		foreign:   {foreign, nil},
	}
	tags := map[int][]VLANTag{
		vlan100: {{0x88a8, 100}}, inner: {{0x88a8, 100}, {0x8100, 5}}, plainVLAN: {{0x8100, 7}},
	}
	links, _ := stack(interfaces, nil, map[int]bool{eth1: true, vlan100: true})
	if len(links) != len(interfaces) {
		t.Errorf("%d links for %d interfaces", len(links), len(interfaces))
	}
	for _, link := range links {
		if got := (place{link.Device, link.Members}); !reflect.DeepEqual(got, places[link.Index]) {
			t.Errorf("interface %d = %+v, want %+v", link.Index, got, places[link.Index])
		}
		if want := tags[link.Index]; !slices.Equal(link.Tags, want) {
			t.Errorf("interface %d: tags = %v, want %v", link.Index, link.Tags, want)
		}
		if want := link.Index == bond0 || link.Index == vlan100; link.HasAddress != want {
			t.Errorf("interface %d: HasAddress = %t, want %t", link.Index, link.HasAddress, want)
		}
	}
	for name, test := range map[string]struct{ selected, want []int }{
		"member of a bond":         {[]int{eth0}, []int{bond0}},
		"bond and its members":     {[]int{eth0, eth1, bond0}, []int{bond0}},
		"port of a bridge":         {[]int{eth2}, []int{eth2}},
		"VLAN device":              {[]int{vlan100}, []int{vlan100}},
		"VLAN device and its bond": {[]int{vlan100, bond0}, []int{bond0, vlan100}},
		"none":                     {nil, nil},
		"deleted interface":        {[]int{42}, nil},
	} {
		selected := map[int]bool{}
		for _, index := range test.selected {
			selected[index] = true
		}
		_, uplinks := stack(interfaces, selected, nil)
		if got := slices.Sorted(maps.Keys(uplinks)); !slices.Equal(got, test.want) {
			t.Errorf("%s: uplinks = %v, want %v", name, got, test.want)
		}
	}
}
