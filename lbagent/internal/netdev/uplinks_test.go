// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/millrace-lb/millrace/test/isolated"
)

func names(links []Link) []string {
	var result []string
	for _, link := range links {
		result = append(result, link.Name)
	}
	return result
}

func TestChoose(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f := NewFinder(nil)
	eth0, eth1 := Link{Name: "eth0", Index: 2}, Link{Name: "eth1", Index: 3}
	for _, step := range []struct {
		what     string
		after    time.Duration
		existing []Link
		selected map[int]bool
		want     []string
		again    time.Duration
	}{
		{"interface selected", 0, []Link{eth1, eth0}, map[int]bool{2: true}, []string{"eth0"}, 0},
		{"route removed", time.Second, []Link{eth1, eth0}, nil, []string{"eth0"}, HoldOff - time.Second},
		{"route restored", time.Second, []Link{eth1, eth0}, map[int]bool{2: true}, []string{"eth0"}, 0},
		{"route moved", 0, []Link{eth1, eth0}, map[int]bool{3: true}, []string{"eth0", "eth1"}, HoldOff},
		{"hold time of the previous interface expired", HoldOff, []Link{eth1, eth0}, map[int]bool{3: true}, []string{"eth1"}, 0},
		{"interface deleted", 0, []Link{eth0}, nil, nil, 0},
	} {
		now = now.Add(step.after)
		uplinks, again := f.choose(step.existing, step.selected, now)
		if !slices.Equal(names(uplinks), step.want) || again != step.again {
			t.Errorf("%s: %v, next check in %s; want %v, %s", step.what, names(uplinks), again, step.want, step.again)
		}
	}
}

func TestCheckPatterns(t *testing.T) {
	if err := CheckPatterns([]string{"eth0", "bond*", "en[op]*"}); err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{"", "eth[", `eth\`} {
		if CheckPatterns([]string{pattern}) == nil {
			t.Errorf("CheckPatterns accepts %q", pattern)
		}
	}
}

func addLink(t *testing.T, name, address string) netlink.Link {
	t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	if address != "" {
		parsed, err := netlink.ParseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(link, parsed); err != nil {
			t.Fatal(err)
		}
	}
	peer, err := netlink.LinkByName(link.PeerName)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []netlink.Link{link, peer} {
		if err := netlink.LinkSetUp(end); err != nil {
			t.Fatal(err)
		}
	}
	return link
}

func addDefaultRoute(t *testing.T, links ...netlink.Link) {
	t.Helper()
	route := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}
	for _, link := range links {
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index})
	}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
}

// TestFind needs root.
func TestFind(t *testing.T) {
	isolated.Thread(t)
	addLink(t, "data0", "198.51.100.1/24")
	first := addLink(t, "route0", "203.0.113.1/24")
	second := addLink(t, "route1", "2001:db8::1/64")
	addLink(t, "pod0", "fe80::7/64")
	addDefaultRoute(t, first, second)
	for name, test := range map[string]struct {
		patterns  []string
		addresses []netip.Addr
		peers     []netip.Addr
		want      []string
	}{
		"default route": {want: []string{"route0", "route1"}},
		"default route and address": {
			addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1"), {}},
			want:      []string{"data0", "route0", "route1"},
		},
		"default route and peer": {
			peers: []netip.Addr{netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("198.18.1.1")},
			want:  []string{"data0", "route0", "route1"},
		},
		"default route and link-local peer": {
			peers: []netip.Addr{netip.MustParseAddr("fe80::9%pod0")}, want: []string{"pod0", "route0", "route1"},
		},
		"peer address of the node itself": {
			peers: []netip.Addr{netip.MustParseAddr("198.51.100.1")}, want: []string{"route0", "route1"},
		},
		"names":           {patterns: []string{"pod0", "nothing"}, peers: []netip.Addr{netip.MustParseAddr("198.51.100.9")}, want: []string{"pod0"}},
		"glob without lo": {patterns: []string{"*0", "lo"}, want: []string{"data0", "pod0", "route0"}},
		"no match":        {patterns: []string{"eth*"}},
	} {
		// A subtest would run on a thread outside the namespace.
		found, err := NewFinder(test.patterns).Find(test.addresses, test.peers, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if found.RequeueAfter != 0 || !slices.Equal(names(found.Links), test.want) {
			t.Errorf("%s: uplinks = %v, next check in %s; want %v", name, names(found.Links), found.RequeueAfter, test.want)
		}
	}
}

// TestLeads needs root.
func TestLeads(t *testing.T) {
	isolated.Thread(t)
	data := addLink(t, "data0", "198.51.100.1/24")
	first := addLink(t, "route0", "203.0.113.1/24")
	second := addLink(t, "route1", "2001:db8::1/64")
	addDefaultRoute(t, first, second)
	onLink, remote := netip.MustParseAddr("198.51.100.254"), netip.MustParseAddr("198.18.0.254")
	local, none := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:9::1")
	peers := []netip.Addr{onLink, remote, local, none}
	found, err := NewFinder(nil).Find([]netip.Addr{local}, peers, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	want := map[netip.Addr][]int{onLink: {data.Attrs().Index}, remote: {first.Attrs().Index, second.Attrs().Index}}
	if !reflect.DeepEqual(found.PeerUplinks, want) {
		t.Errorf("uplinks to peers = %v, want %v", found.PeerUplinks, want)
	}
	for _, link := range found.Links {
		if !link.Ethernet || link.HasAddress != (link.Name == "data0") {
			t.Errorf("%s: Ethernet = %t, HasAddress = %t", link.Name, link.Ethernet, link.HasAddress)
		}
	}
	// Only uplinks have routes to peers.
	found, err = NewFinder([]string{"route*"}).Find([]netip.Addr{local}, peers, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if delete(want, onLink); !reflect.DeepEqual(found.PeerUplinks, want) {
		t.Errorf("with patterns: uplinks to peers = %v, want %v", found.PeerUplinks, want)
	}
}

// TestWatch needs root.
func TestWatch(t *testing.T) {
	isolated.Thread(t)
	changes := make(chan struct{}, 1000)
	started := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	namespace, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = namespace.Close() }()
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(namespace); err != nil {
			ended <- err
			return
		}
		first := true
		ended <- Watch(ctx, func() {
			if first {
				close(started)
				first = false
				return
			}
			changes <- struct{}{}
		})
	}()
	<-started
	await := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case err := <-ended:
			t.Fatalf("%s: the watch returned %v", what, err)
		case <-time.After(5 * time.Second):
			t.Fatalf("%s was not reported", what)
		}
	}
	link := addLink(t, "eth0", "")
	await("new interface")
	// Events of the new interface, the last one for its link-local address.
	for quiet := false; !quiet; {
		select {
		case <-changes:
		case <-time.After(2 * time.Second):
			quiet = true
		}
	}
	addDefaultRoute(t, link)
	await("a default route")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch returned %v, want context.Canceled", err)
	}
}
