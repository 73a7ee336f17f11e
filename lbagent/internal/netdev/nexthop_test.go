// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestNextHopTo checks that the next hop follows the kernel's route: to the router's Ethernet address or to a
// gateway's.
func TestNextHopTo(t *testing.T) {
	far := newFar(t)
	link := far.connect(t, "uplink", "198.51.100.2/24", "198.51.100.1/24", 1)
	other := far.connect(t, "other", "2001:db8::2/64", "2001:db8::1/64", 2)
	must(t, netlink.RouteAdd(&netlink.Route{
		LinkIndex: link.Attrs().Index, Gw: net.IPv4(198, 51, 100, 1), Dst: mustParseAddr(t, "203.0.113.0/24").IPNet,
	}))

	router := netip.MustParseAddr("198.51.100.1")
	if way, err := NextHopTo(router); !errors.Is(err, errUnresolved) {
		t.Errorf("NextHopTo an unresolved router = %+v, error %v", way, err)
	}
	// A link with many neighbors, including the router and one that does not answer.
	for i := 1; i < 100; i++ {
		must(t, netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
			IP: net.IPv4(198, 51, 100, byte(i)), HardwareAddr: farMAC(byte(i)),
		}))
	}
	must(t, netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_FAILED, IP: net.IPv4(198, 51, 100, 200),
	}))
	must(t, netlink.NeighSet(&netlink.Neigh{
		LinkIndex: other.Attrs().Index, Family: unix.AF_INET6, State: netlink.NUD_PERMANENT,
		IP: net.ParseIP("fe80::1"), HardwareAddr: farMAC(9),
	}))
	for address, want := range map[string]NextHop{
		"198.51.100.1":  {link.Attrs().Index, [6]byte(farMAC(1)), 1500},
		"198.51.100.77": {link.Attrs().Index, [6]byte(farMAC(77)), 1500},
		"203.0.113.9":   {link.Attrs().Index, [6]byte(farMAC(1)), 1500},
		"fe80::1%other": {other.Attrs().Index, [6]byte(farMAC(9)), 1500},
	} {
		if way, err := NextHopTo(netip.MustParseAddr(address)); err != nil || way != want {
			t.Errorf("NextHopTo(%s) = %+v, %v, want %+v", address, way, err, want)
		}
	}
	for _, address := range []string{"198.51.100.200", "198.51.100.201"} {
		if way, err := NextHopTo(netip.MustParseAddr(address)); !errors.Is(err, errUnresolved) {
			t.Errorf("NextHopTo(%s) without a reply = %+v, error %v", address, way, err)
		}
	}
	if way, err := NextHopTo(netip.MustParseAddr("198.18.0.1")); err == nil {
		t.Errorf("NextHopTo without a route = %+v", way)
	}
}
