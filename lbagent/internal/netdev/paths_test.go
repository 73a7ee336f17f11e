// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// TestIngress checks the uplinks of nodes with routes of a network namespace. It needs root.
func TestIngress(t *testing.T) {
	f := newFar(t)
	first := f.connect(t, "first", "198.51.100.1/25", "198.51.100.2/25", 1)
	second := f.connect(t, "second", "198.51.100.129/25", "198.51.100.130/25", 2)
	one, two := first.Attrs().Index, second.Attrs().Index
	set := make(chan map[forwarding.NodeID][]int, 1)
	w := runWatcher(t, HopConfig{
		Set: func(map[forwarding.NodeID]forwarding.Hop) error { return nil },
		SetIngress: func(ingress map[forwarding.NodeID][]int) error {
			select {
			case <-set:
			default:
			}
			set <- ingress
			return nil
		},
		RenewLease: func() error { return nil },
		Report:     func(err error) { t.Errorf("reported: %v", err) },
	})
	const onLink, routed forwarding.NodeID = 1, 2
	source := netip.MustParseAddr("198.51.100.1")
	w.SetTargets(map[forwarding.NodeID]fib.Target{
		onLink: {Source: source, Destination: netip.MustParseAddr("198.51.100.2")},
		routed: {Source: source, Destination: netip.MustParseAddr("203.0.113.9")},
	}, map[int][]int{one: {one}, two: {two}})
	await := func(what string, id forwarding.NodeID, want ...int) {
		t.Helper()
		slices.Sort(want)
		deadline := time.After(30 * time.Second)
		var last map[forwarding.NodeID][]int
		for {
			select {
			case last = <-set:
			case <-deadline:
				t.Fatalf("%s: node %d: incoming interface %v, want %v", what, id, last[id], want)
			}
			if slices.Equal(last[id], want) && slices.Equal(last[onLink], []int{one}) {
				return
			}
		}
	}
	await("no route", routed)
	far := func(change func(*netlink.Route)) *netlink.Route {
		route := &netlink.Route{Dst: mustParseAddr(t, "203.0.113.0/24").IPNet, Gw: net.ParseIP("198.51.100.2")}
		change(route)
		return route
	}
	anywhere := &netlink.Route{Gw: net.ParseIP("198.51.100.130")}
	must(t, netlink.RouteAdd(anywhere))
	await("a default route", routed, two)
	must(t, netlink.RouteAdd(far(func(*netlink.Route) {})))
	await("specific route overrides the default route", routed, one)
	spare := far(func(r *netlink.Route) { r.Gw, r.Priority = net.ParseIP("198.51.100.130"), 500 })
	must(t, netlink.RouteAdd(spare))
	await("second route as a backup", routed, one, two)
	must(t, netlink.RouteDel(spare))
	await("backup route removed", routed, one)
	must(t, netlink.RouteReplace(far(func(r *netlink.Route) {
		r.Gw = nil
		r.MultiPath = []*netlink.NexthopInfo{
			{LinkIndex: one, Gw: net.ParseIP("198.51.100.2")}, {LinkIndex: two, Gw: net.ParseIP("198.51.100.130")},
		}
	})))
	await("two next hops", routed, one, two)
}
