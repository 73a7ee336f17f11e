// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/test/isolated"
)

// far is the other end of the tests' links: another namespace.
type far struct {
	*netlink.Handle
	namespace netns.NsHandle
}

// newFar also moves the test's thread into a new namespace.
func newFar(t *testing.T) *far {
	t.Helper()
	isolated.Thread(t)
	near, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	namespace, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { namespace.Close() })
	// Each end answers only for its own addresses, and announces moved ones.
	setSysctl(t, "ipv4/conf/all/arp_ignore", "1")
	setSysctl(t, "ipv4/conf/all/arp_notify", "1")
	setSysctl(t, "ipv4/conf/default/arp_notify", "1")
	setSysctl(t, "ipv6/conf/default/accept_dad", "0")
	if err := netns.Set(near); err != nil {
		t.Fatal(err)
	}
	setSysctl(t, "ipv4/conf/all/arp_ignore", "1")
	setSysctl(t, "ipv6/conf/default/accept_dad", "0")
	handle, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(handle.Close)
	return &far{handle, namespace}
}

func (f *far) in(t *testing.T, do func()) {
	t.Helper()
	near, err := netns.Get()
	must(t, err)
	defer near.Close()
	must(t, netns.Set(f.namespace))
	do()
	must(t, netns.Set(near))
}

func setSysctl(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func mustParseAddr(t *testing.T, s string) *netlink.Addr {
	t.Helper()
	parsed, err := netlink.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect adds a link to the far namespace. Both ends have its name.
func (f *far) connect(t *testing.T, name, nearAddress, farAddress string, mac byte) netlink.Link {
	t.Helper()
	link := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: name, MTU: 1500},
		PeerName:         name,
		PeerNamespace:    netlink.NsFd(int(f.namespace)),
		PeerHardwareAddr: farMAC(mac),
	}
	must(t, netlink.LinkAdd(link))
	peer, err := f.LinkByName(name)
	must(t, err)
	must(t, netlink.AddrAdd(link, mustParseAddr(t, nearAddress)))
	must(t, f.AddrAdd(peer, mustParseAddr(t, farAddress)))
	must(t, netlink.LinkSetUp(link))
	must(t, f.LinkSetUp(peer))
	setSysctl(t, "ipv4/neigh/"+name+"/delay_first_probe_time", "1")
	near, err := netlink.LinkByName(name)
	must(t, err)
	return near
}

func farMAC(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, last} }

// runHops runs a HopWatcher in the test's namespace. The channel holds the latest hops.
func runHops(t *testing.T) (*HopWatcher, <-chan map[forwarding.NodeID]forwarding.Hop) {
	t.Helper()
	hops := make(chan map[forwarding.NodeID]forwarding.Hop, 1)
	w := runWatcher(t, HopConfig{
		Set: func(set map[forwarding.NodeID]forwarding.Hop) error {
			select {
			case <-hops:
			default:
			}
			hops <- set
			return nil
		},
		SetIngress: func(map[forwarding.NodeID][]int) error { return nil },

		RenewLease: func() error { return nil },
		Report:     func(err error) { t.Errorf("reported: %v", err) },
	})
	return w, hops
}

func runWatcher(t *testing.T, config HopConfig) *HopWatcher {
	t.Helper()
	namespace, err := netns.Get()
	must(t, err)
	w := NewHopWatcher(config)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		// The thread is not unlocked, so it ends with the goroutine.
		runtime.LockOSThread()
		defer namespace.Close()
		if err := netns.Set(namespace); err != nil {
			ended <- err
			return
		}
		ended <- w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watcher returned %v, want context.Canceled", err)
		}
	})
	return w
}

// TestHopWatcher uses routes, neighbors and links of network namespaces. It needs root.
func TestHopWatcher(t *testing.T) {
	f := newFar(t)
	first := f.connect(t, "first", "198.51.100.1/25", "198.51.100.2/25", 1)
	second := f.connect(t, "second", "198.51.100.129/25", "198.51.100.130/25", 2)
	must(t, netlink.AddrAdd(second, mustParseAddr(t, "2001:db8::1/64")))
	farSecond, err := f.LinkByName("second")
	must(t, err)
	must(t, f.AddrAdd(farSecond, mustParseAddr(t, "2001:db8::2/64")))
	w, set := runHops(t)
	const onLink, silent, routed, ipv6 forwarding.NodeID = 1, 2, 3, 4
	source := netip.MustParseAddr("198.51.100.1")
	targets := map[forwarding.NodeID]fib.Target{
		onLink: {Source: source, Destination: netip.MustParseAddr("198.51.100.2")},
		silent: {Source: source, Destination: netip.MustParseAddr("198.51.100.3")},
		routed: {Source: source, Destination: netip.MustParseAddr("203.0.113.9")},
		ipv6:   {Source: netip.MustParseAddr("2001:db8::1"), Destination: netip.MustParseAddr("2001:db8::2")},
	}
	hop := func(link netlink.Link, mac byte, mtu int) *forwarding.Hop {
		return &forwarding.Hop{Interface: link.Attrs().Index, MTU: mtu,
			Source: [6]byte(link.Attrs().HardwareAddr), Destination: [6]byte(farMAC(mac))}
	}
	await := func(what string, id forwarding.NodeID, want *forwarding.Hop) {
		t.Helper()
		deadline := time.After(30 * time.Second)
		var last map[forwarding.NodeID]forwarding.Hop
		for {
			select {
			case last = <-set:
			case <-deadline:
				t.Fatalf("%s: hop to node %d = %+v, want %+v", what, id, last[id], want)
			}
			if _, found := last[silent]; found {
				t.Fatalf("%s: hop to a node that does not reply", what)
			}
			if got, found := last[id]; found == (want != nil) && (!found || got == *want) {
				return
			}
		}
	}
	devices := map[int][]int{
		first.Attrs().Index: {first.Attrs().Index}, second.Attrs().Index: {second.Attrs().Index},
	}
	w.SetTargets(targets, devices)
	await("no previous traffic", onLink, hop(first, 1, 1500))
	w.SetTargets(targets, map[int][]int{second.Attrs().Index: {second.Attrs().Index}})
	await("no longer an uplink", onLink, nil)
	w.SetTargets(targets, devices)
	await("uplink again; IPv6", ipv6, hop(second, 2, 1500))

	route := &netlink.Route{Dst: mustParseAddr(t, "203.0.113.0/24").IPNet, Gw: net.ParseIP("198.51.100.2")}
	must(t, netlink.RouteAdd(route))
	await("a route appears", routed, hop(first, 1, 1500))
	route.Gw, route.MTU = net.ParseIP("198.51.100.130"), 1400
	must(t, netlink.RouteReplace(route))
	await("route through the other uplink", routed, hop(second, 2, 1400))

	must(t, f.LinkSetHardwareAddr(farSecond, farMAC(3)))
	await("MAC address of the router changed", routed, hop(second, 3, 1400))
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: second.Attrs().Index, State: netlink.NUD_STALE,
		IP: net.ParseIP("198.51.100.130").To4(), HardwareAddr: farMAC(9)}))
	await("a wrong address", routed, hop(second, 9, 1400))
	await("no reply from the neighbour", routed, hop(second, 3, 1400))

	must(t, netlink.LinkSetMTU(first, 1300))
	await("MTU of the interface changed", onLink, hop(first, 1, 1300))
	must(t, netlink.LinkSetDown(first))
	await("link down", onLink, nil)
	must(t, netlink.LinkSetUp(first))
	await("link up", onLink, hop(first, 1, 1300))
	must(t, netlink.LinkDel(second))
	await("link deleted", routed, nil)
}

// TestHopsNotSet checks that a failure to set hops is reported once and retried, and that the lease is
// not renewed. It needs root.
func TestHopsNotSet(t *testing.T) {
	newFar(t)
	failure := errors.New("refused")
	events := make(chan string, 100)
	sets := 0
	runWatcher(t, HopConfig{
		Set: func(map[forwarding.NodeID]forwarding.Hop) error {
			sets++
			events <- "set"
			if sets < 3 {
				return failure
			}
			return nil
		},
		SetIngress: func(map[forwarding.NodeID][]int) error { return nil },
		RenewLease: func() error {
			events <- "renew"
			return nil
		},
		Report: func(err error) {
			events <- fmt.Sprintf("report %v", err)
		},
	})
	for i, want := range []string{"set", "report refused", "set", "set", "renew", "report <nil>", "renew"} {
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("event %d = %s, want %s", i, got, want)
			}
		case <-time.After(6 * refresh):
			t.Fatalf("timeout while waiting for event %d: %s", i, want)
		}
	}
}

func TestLostMessages(t *testing.T) {
	events := &changes{make(chan netlink.LinkUpdate), make(chan netlink.RouteUpdate), make(chan netlink.NeighUpdate)}
	s := &hopWatch{HopWatcher: NewHopWatcher(HopConfig{}), events: events, cache: &fibCache{},
		ticker: time.NewTicker(time.Hour), flush: time.NewTimer(time.Hour)}
	close(events.neighbours)
	if err := s.next(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("error %v, want %v", err, errLost)
	}
}
