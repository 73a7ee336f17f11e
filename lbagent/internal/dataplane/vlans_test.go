// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"maps"
	"net"
	"strings"
	"testing"

	"github.com/safchain/ethtool"

	"github.com/millrace-lb/millrace/bpf"
)

func newOf(t *testing.T, name string, kind ...string) Uplink {
	t.Helper()
	run(t, "ip", append([]string{"link", "add", name, "type"}, kind...)...)
	t.Cleanup(func() { run(t, "ip", "link", "delete", name) })
	iface, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return Uplink{Name: name, Index: iface.Index}
}

// takesTags reports which tags the interface strips: 802.1Q, 802.1ad.
func takesTags(t *testing.T, name string) [2]bool {
	t.Helper()
	tool, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	features, err := tool.Features(name)
	if err != nil {
		t.Fatal(err)
	}
	return [2]bool{features["rx-vlan-hw-parse"], features["rx-vlan-stag-hw-parse"]}
}

// VLAN stripping is disabled on NICs below a VLAN uplink, and restored after the last one.
func TestTagOffload(t *testing.T) {
	config := smallConfig(mountBPF(t))
	d := openDataplane(t, config)
	card := newOf(t, "card", "veth", "peer", "name", "card-end")
	other := newOf(t, "other", "veth", "peer", "name", "other-end")
	run(t, "ethtool", "-K", "other", "rx-vlan-stag-hw-parse", "off")
	first, second := newTap(t, "first"), newTap(t, "second")
	first.Device, first.Tags = card.Index, []VLANTag{{0x8100, 7}}
	second.Device, second.Tags = card.Index, []VLANTag{{0x88a8, 9}, {0x8100, 7}}
	second.Members = []int{other.Index}
	check := func(step string, wantCard, wantOther [2]bool, wantVLANs map[bpf.DatapathVlanKey]uint32) {
		t.Helper()
		if got := [2][2]bool{takesTags(t, "card"), takesTags(t, "other")}; got != [2][2]bool{wantCard, wantOther} {
			t.Errorf("%s: VLAN offload = %v, want %v and %v", step, got, wantCard, wantOther)
		}
		got := map[bpf.DatapathVlanKey]uint32{}
		if err := readMap(d.maps.Vlans, func(key bpf.DatapathVlanKey, uplink uint32) { got[key] = uplink }); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, wantVLANs) {
			t.Errorf("%s: map vlans = %v, want %v", step, got, wantVLANs)
		}
	}
	use := func(uplinks ...Uplink) {
		t.Helper()
		if err := d.Attach(uplinks); err != nil {
			t.Fatal(err)
		}
	}
	// On a little-endian machine, as in a frame.
	one := map[bpf.DatapathVlanKey]uint32{
		{Ifindex: uint32(card.Index), Tag: [2]uint32{0x07000081, 0}}: uint32(first.Index),
	}
	two := maps.Clone(one)
	for _, index := range []int{card.Index, other.Index} {
		two[bpf.DatapathVlanKey{Ifindex: uint32(index), Tag: [2]uint32{0x0900a888, 0x07000081}}] = uint32(second.Index)
	}
	none := map[bpf.DatapathVlanKey]uint32{}
	on, off, asBefore := [2]bool{true, true}, [2]bool{}, [2]bool{true, false}
	use(card)
	check("without a VLAN", on, asBefore, none)
	use(first)
	check("a VLAN", off, asBefore, one)
	use(first, second)
	check("second device with a member", off, off, two)
	run(t, "ethtool", "-K", "card", "rxvlan", "on")
	use(first, second)
	check("VLAN offload enabled externally", off, off, two)
	use(first)
	check("one left", off, asBefore, one)
	use(card)
	check("none left", on, asBefore, none)
	use(first)
	if err := Remove(config.PinRoot); err != nil {
		t.Fatal(err)
	}
	if got := takesTags(t, "card"); got != on {
		t.Errorf("VLAN offload = %v, want both", got)
	}
}

// A device that may hide tags from XDP is reported, and replies of VIPs then take the kernel's path.
func TestTagsBeside(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	const beside, byKernel = uint32(bpf.DatapathSelfFlagSELF_VLAN_STRIPPED), uint32(bpf.DatapathSelfFlagSELF_NO_TRANSMIT)
	for _, test := range []struct {
		name   string
		device Uplink
		beside string
		flags  uint32
	}{
		{"device that exposes tags", newTap(t, "plain"), "", 0},
		{"veth", newOf(t, "card", "veth", "peer", "name", "card-end"), "card is of kind veth", beside | byKernel},
		{"bridge", newOf(t, "bridged", "bridge"), "bridged is of kind bridge", beside | byKernel},
	} {
		t.Run(test.name, func(t *testing.T) {
			vlan := newTap(t, "vlan")
			vlan.Device, vlan.Tags = test.device.Index, []VLANTag{{0x8100, 7}}
			if err := d.Attach([]Uplink{vlan}); err != nil {
				t.Fatal(err)
			}
			got := ""
			if beside := d.Attachments()[0].TagsBeside; beside != nil {
				got = beside.Error()
			}
			if got != test.beside || d.self.Flags != test.flags {
				t.Errorf("TagsBeside = %q, flags %#x; want %q, %#x", got, d.self.Flags, test.beside, test.flags)
			}
			if err := d.Attach(nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTooManyTags(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	device, vlan := newTap(t, "device"), newTap(t, "vlan")
	vlan.Device, vlan.Tags = device.Index, []VLANTag{{0x8100, 1}, {0x8100, 2}, {0x8100, 3}}
	if err := d.Attach([]Uplink{vlan}); err == nil || !strings.Contains(err.Error(), "the programs read 2 tags") {
		t.Errorf("error %v", err)
	}
	if pins := linkPins(t, d); pins != 0 {
		t.Errorf("%d pinned links, want 0", pins)
	}
}
