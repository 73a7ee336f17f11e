// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// manyNodes exceeds the kernel's limit of neighbors for each family: gc_thresh3 is 1,024.
const manyNodes = 1500

// TestManyNeighbours checks that all nodes on one link have a hop even beyond the kernel's limit of
// neighbors, and that entries for hops are removed with the hops, without an effect on other entries. It
// needs root.
func TestManyNeighbours(t *testing.T) {
	f := newFar(t)
	link := f.connect(t, "first", "198.18.0.1/16", "198.18.255.254/16", 1)
	must(t, netlink.AddrAdd(link, mustParseAddr(t, "2001:db8::1/64")))
	f.answerForMany(t, "198.18.64.0/18")
	foreign := fib.NeighbourKey{Interface: link.Attrs().Index, Address: netip.MustParseAddr("198.18.80.1")}
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: foreign.Interface, IP: foreign.Address.AsSlice(),
		Flags: managedFlags, FlagsExt: managedFlagsExt}))

	w, set := runHops(t)
	targets := map[forwarding.NodeID]fib.Target{}
	for i := range uint32(manyNodes) {
		id := forwarding.NodeID(2 * i)
		address := binary.BigEndian.AppendUint32(nil, 0xc6_12_40_00+i)
		targets[id] = fib.Target{Source: netip.MustParseAddr("198.18.0.1"), Destination: netip.AddrFrom4([4]byte(address))}
		targets[id+1] = fib.Target{Source: netip.MustParseAddr("2001:db8::1"), Destination: nodeIPv6(i)}
	}
	targets[2*manyNodes] = fib.Target{Source: netip.MustParseAddr("198.18.0.1"), Destination: foreign.Address}
	devices := map[int][]int{foreign.Interface: {foreign.Interface}}
	w.SetTargets(targets, devices)
	awaitHops(t, set, 2*manyNodes+1)
	awaitKept(t, 2*manyNodes)

	w.SetTargets(map[forwarding.NodeID]fib.Target{7: targets[7]}, devices)
	awaitHops(t, set, 1)
	awaitKept(t, 1)

	must(t, RemoveNeighbours())
	if left := kept(t); left != 0 {
		t.Errorf("%d neighbours remain after the removal of all", left)
	}
	if neighbour, err := neighbourAt(foreign); err != nil || !neighbour.Persistent || neighbour.MAC != [6]byte(farMAC(1)) {
		t.Errorf("neighbor entry of another program = %+v, error %v", neighbour, err)
	}
}

func nodeIPv6(number uint32) netip.Addr {
	address := netip.MustParseAddr("2001:db8::1:0").As16()
	binary.BigEndian.PutUint16(address[14:], uint16(number))
	return netip.AddrFrom16(address)
}

// answerForMany makes the far end answer for all addresses of a network, and adds the nodes' IPv6
// addresses to it.
func (f *far) answerForMany(t *testing.T, network string) {
	t.Helper()
	link, err := f.LinkByName("first")
	must(t, err)
	must(t, f.RouteAdd(&netlink.Route{
		Dst: mustParseAddr(t, network).IPNet, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		Table: unix.RT_TABLE_LOCAL, LinkIndex: link.Attrs().Index,
	}))
	for i := range uint32(manyNodes) {
		must(t, f.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: nodeIPv6(i).AsSlice(), Mask: net.CIDRMask(64, 128)}}))
	}
	f.in(t, func() { setSysctl(t, "ipv4/conf/all/arp_ignore", "0") })
}

func awaitHops(t *testing.T, set <-chan map[forwarding.NodeID]forwarding.Hop, want int) {
	t.Helper()
	deadline := time.After(time.Minute)
	for last := -1; last != want; {
		select {
		case hops := <-set:
			last = len(hops)
		case <-deadline:
			t.Fatalf("hops to %d nodes, want %d", last, want)
		}
	}
}

func awaitKept(t *testing.T, want int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for ; kept(t) != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d persistent neighbours, want %d", kept(t), want)
		}
	}
}

func kept(t *testing.T) int {
	t.Helper()
	keys, err := ManagedNeighbours()
	must(t, err)
	return len(keys)
}
