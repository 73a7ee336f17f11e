// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestIsAddressGone uses the far end of a link as the pods of a bridge.
func TestIsAddressGone(t *testing.T) {
	f := newFar(t)
	link := f.connect(t, "up0", "198.51.100.2/24", "198.51.100.1/24", 1)
	f.connect(t, "pods", "198.18.0.1/24", "198.18.0.2/24", 2)
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	add := func(destination string, route netlink.Route) {
		t.Helper()
		_, route.Dst, err = net.ParseCIDR(destination)
		must(t, err)
		must(t, netlink.RouteAdd(&route))
	}
	check := func(address string, want bool) {
		t.Helper()
		if got := IsAddressGone(netip.MustParseAddr(address)); got != want {
			t.Errorf("IsAddressGone(%s) = %v, want %v", address, got, want)
		}
	}
	check("192.0.2.1", true)
	add("0.0.0.0/0", netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.IPv4(198, 51, 100, 1)})
	add("198.18.1.0/24", netlink.Route{Type: unix.RTN_BLACKHOLE})
	add("198.18.2.0/24", netlink.Route{Type: unix.RTN_UNREACHABLE})
	add("198.18.3.0/24", netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.IPv4(198, 51, 100, 9)})
	check("192.0.2.1", true)
	check("198.18.1.1", true)
	check("198.18.2.1", true)
	check("198.18.3.1", false)
	check("198.51.100.2", false)
	check("198.18.0.2", false)
	check("198.18.0.3", false)
	deadline := time.Now().Add(20 * time.Second)
	for !IsAddressGone(netip.MustParseAddr("198.18.0.3")) {
		if time.Now().After(deadline) {
			t.Fatal("an address without a host is not reported as gone")
		}
	}
	check("198.18.0.2", false)
}
