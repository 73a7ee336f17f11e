// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
)

// newTap adds an interface whose driver supports native XDP and transmission.
func newTap(t *testing.T, name string) Uplink {
	t.Helper()
	run(t, "ip", "tuntap", "add", name, "mode", "tap")
	t.Cleanup(func() {
		if _, err := net.InterfaceByName(name); err == nil {
			run(t, "ip", "tuntap", "delete", name, "mode", "tap")
		}
	})
	iface, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return Uplink{Name: name, Index: iface.Index}
}

func placed(t *testing.T, d *Dataplane, ifindex int) (xdp, ingress, egress bool) {
	t.Helper()
	pins, err := attach.Pins(d.hooks.Directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, pin := range pins {
		if pin.Interface != ifindex {
			continue
		}
		kind := string(pin.Kind)
		xdp = xdp || strings.HasPrefix(kind, "xdp-")
		ingress = ingress || strings.HasSuffix(kind, "-ingress")
		egress = egress || strings.HasSuffix(kind, "-egress")
	}
	return xdp, ingress, egress
}

func checkPlaced(t *testing.T, step string, d *Dataplane, uplink Uplink, wantDevice, wantEgress bool) {
	t.Helper()
	xdp, ingress, egress := placed(t, d, uplink.Index)
	if xdp != wantDevice || ingress != wantDevice || egress != wantEgress {
		t.Errorf("%s: %s: XDP %v, ingress %v, egress %v; want %v, %v, %v",
			step, uplink.Name, xdp, ingress, egress, wantDevice, wantDevice, wantEgress)
	}
}

// Uplinks of one device share its XDP program; replies are translated on each uplink. A program on a bond's
// member is replaced by that of the bond.
func TestAttachStacked(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	device, member := newTap(t, "device"), newTap(t, "member")
	first, second := newTap(t, "first"), newTap(t, "second")
	check := func(step string, wantUplinks map[uint32]bpf.DatapathUplink) {
		t.Helper()
		got := map[uint32]bpf.DatapathUplink{}
		if err := readMap(d.maps.Uplinks, func(index uint32, uplink bpf.DatapathUplink) { got[index] = uplink }); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, wantUplinks) {
			t.Errorf("%s: map uplinks = %+v, want %+v", step, got, wantUplinks)
		}
	}
	use := func(uplinks ...Uplink) {
		t.Helper()
		if err := d.Attach(uplinks); err != nil {
			t.Fatal(err)
		}
	}
	takes := bpf.DatapathUplink{Flags: uint32(bpf.DatapathUplinkFlagUPLINK_ACCEPTS_REDIRECTS)}
	use(member)
	checkPlaced(t, "alone", d, member, true, true)
	check("alone", map[uint32]bpf.DatapathUplink{uint32(member.Index): takes})

	for _, uplink := range []*Uplink{&first, &second} {
		uplink.Device, uplink.Members = device.Index, []int{member.Index}
	}
	use(first, second)
	checkPlaced(t, "on a device", d, first, false, true)
	checkPlaced(t, "on a device", d, second, false, true)
	checkPlaced(t, "on a device", d, device, true, false)
	checkPlaced(t, "on a device", d, member, false, false)
	bond := map[uint32]bpf.DatapathUplink{
		uint32(device.Index): takes, uint32(member.Index): {Master: uint32(device.Index)},
	}
	check("on a device", bond)
	for _, a := range d.Attachments() {
		if a.Mode != attach.Native || a.Device != device.Index || a.DeviceName != "device" {
			t.Errorf("attachment = %+v, want native mode on the device", a)
		}
	}
	if got := d.self.UplinkMac; got[3] == 0 || got[4] != 0 {
		t.Errorf("addresses = %x, want those of both uplinks, the device and its member", got)
	}

	use(first)
	checkPlaced(t, "one left", d, second, false, false)
	checkPlaced(t, "one left", d, device, true, false)
	check("one left", bond)
	run(t, "ip", "tuntap", "delete", "second", "mode", "tap")
	if err := d.Attach([]Uplink{first, second}); err == nil {
		t.Error("no error although no uplink can be attached")
	}
	checkPlaced(t, "one gone", d, first, false, true)
	checkPlaced(t, "one gone", d, device, true, false)
	use()
	check("none", map[uint32]bpf.DatapathUplink{})
	if pins := linkPins(t, d); pins != 0 {
		t.Errorf("%d pinned links, want 0", pins)
	}
}

// Changes of another uplink lose no packet of the first.
func TestUplinkChanges(t *testing.T) { inBothWays(t, testUplinkChanges) }

func testUplinkChanges(t *testing.T, clsact bool) {
	n := startNetwork(t, clsact)
	node := n.nodes[1]
	sessions := n.openSessions(t, 8)
	running := startLoad(t, netip.AddrPortFrom(vip4, clusterPort), netip.AddrPortFrom(vip6, localPort))
	defer running.end()
	find := func(name string) Uplink {
		t.Helper()
		var uplink Uplink
		inNamespace(t, node.name, func() error {
			iface, err := net.InterfaceByName(name)
			if err == nil {
				uplink = Uplink{Name: name, Index: iface.Index}
			}
			return err
		})
		return uplink
	}
	const create = "link add other type veth peer name other-peer\nlink set other up\nlink set other-peer up"
	for _, step := range []struct {
		name, commands, other string
	}{
		{"added", create, "other"},
		{"renamed", "link set other down\nlink set other name renamed\nlink set renamed up", "renamed"},
		{"another address", "link set renamed address 02:00:00:00:00:99", "renamed"},
		{"down", "link set renamed down", "renamed"},
		{"deleted", "link delete renamed", ""},
		{"uplink created again", create, "other"},
		{"no uplink left", "", ""},
		{"again", "", "other"},
	} {
		if step.commands != "" {
			in(t, node.name, step.commands)
		}
		uplinks := []Uplink{node.uplink}
		if step.other != "" {
			uplinks = append(uplinks, find(step.other))
		}
		running.await(t, 50)
		n.attach(t, node, uplinks...)
		running.await(t, 50)
		if got := node.dataplane.Attachments(); len(got) != len(uplinks) {
			t.Errorf("%s: attachments = %+v, want %d", step.name, got, len(uplinks))
		}
		if pins := linkPins(t, node.dataplane); pins != 3*len(uplinks) {
			t.Errorf("%s: %d pinned links, want %d", step.name, pins, 3*len(uplinks))
		}
	}
	running.end()
	exchangeAll(t, sessions)
	checkNoDrops(t, node)
}
