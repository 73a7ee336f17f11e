// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestGateways reads routes of a network namespace. It needs root.
func TestGateways(t *testing.T) {
	f := newFar(t)
	first := f.connect(t, "first", "198.51.100.1/25", "198.51.100.2/25", 1).Attrs().Index
	second := f.connect(t, "second", "198.51.100.129/25", "198.51.100.130/25", 2).Attrs().Index
	add := func(gateway string, index, metric int) *netlink.Route {
		t.Helper()
		route := &netlink.Route{LinkIndex: index, Gw: net.ParseIP(gateway), Priority: metric}
		route.Dst = mustParseAddr(t, "0.0.0.0/0").IPNet
		if route.Gw.To4() == nil {
			route.Dst = mustParseAddr(t, "::/0").IPNet
		}
		must(t, netlink.RouteAdd(route))
		return route
	}
	check := func(step, want4, want6 string) {
		t.Helper()
		got, err := Gateways()
		if err != nil {
			t.Fatal(err)
		}
		if got4, got6 := fmt.Sprint(got[netlink.FAMILY_V4]), fmt.Sprint(got[netlink.FAMILY_V6]); got4 != want4 || got6 != want6 {
			t.Errorf("%s: %s and %s, want %s and %s", step, got4, got6, want4, want6)
		}
	}
	check("no route", "[]", "[]")
	best := add("198.51.100.2", first, 100)
	check("one", "[198.51.100.2]", "[]")
	add("198.51.100.130", second, 200)
	check("spare gateway", "[198.51.100.2]", "[]")
	must(t, netlink.RouteDel(best))
	check("only the spare gateway", "[198.51.100.130]", "[]")
	must(t, netlink.RouteAdd(&netlink.Route{Dst: mustParseAddr(t, "0.0.0.0/0").IPNet, Priority: 50, MultiPath: []*netlink.NexthopInfo{
		{LinkIndex: second, Gw: net.ParseIP("198.51.100.130")}, {LinkIndex: first, Gw: net.ParseIP("198.51.100.2")},
	}}))
	check("several next hops", "[198.51.100.2 198.51.100.130]", "[]")
	add("fe80::1", first, 1024)
	check("link-local", "[198.51.100.2 198.51.100.130]", "[fe80::1%first]")
}
