// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// manyNodes are more than the kernel has room for among its neighbours: gc_thresh3 is 1,024.
const manyNodes = 3000

// All nodes on one link have a hop, however few neighbours the kernel has room for. What is kept for
// hops ends with them, and nothing of others. Needs root.
func TestManyNeighbours(t *testing.T) {
	f := newFar(t)
	link := f.connect(t, "first", "198.18.0.1/16", "198.18.255.254/16", 1)
	f.answerForMany(t, "198.18.64.0/18")
	foreign := fib.NeighbourKey{Interface: link.Attrs().Index, Address: netip.MustParseAddr("198.18.80.1")}
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: foreign.Interface, IP: foreign.Address.AsSlice(),
		Flags: keepFlags, FlagsExt: keepFlagsExt}))

	w, set := runHops(t)
	targets := map[forwarding.NodeID]fib.Target{}
	for id := range forwarding.NodeID(manyNodes) {
		address := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0xc6_12_40_00+uint32(id))))
		targets[id] = fib.Target{Source: netip.MustParseAddr("198.18.0.1"), Destination: address}
	}
	targets[manyNodes] = fib.Target{Source: netip.MustParseAddr("198.18.0.1"), Destination: foreign.Address}
	devices := map[int][]int{foreign.Interface: {foreign.Interface}}
	w.Want(targets, devices)
	awaitHops(t, set, manyNodes+1)
	awaitKept(t, manyNodes)

	w.Want(map[forwarding.NodeID]fib.Target{7: targets[7]}, devices)
	awaitHops(t, set, 1)
	awaitKept(t, 1)

	must(t, ForgetNeighbours())
	if left := kept(t); left != 0 {
		t.Errorf("%d neighbours are kept after all was forgotten", left)
	}
	if neighbour, err := neighbourAt(foreign); err != nil || !neighbour.Kept || neighbour.MAC != [6]byte(farMAC(1)) {
		t.Errorf("what another program has kept is %+v, %v", neighbour, err)
	}
}

// answerForMany has the other end answer for all addresses of a network.
func (f *far) answerForMany(t *testing.T, network string) {
	t.Helper()
	link, err := f.LinkByName("first")
	must(t, err)
	must(t, f.RouteAdd(&netlink.Route{
		Dst: mustParseAddr(t, network).IPNet, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		Table: unix.RT_TABLE_LOCAL, LinkIndex: link.Attrs().Index,
	}))
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
			t.Fatalf("there are hops to %d nodes, want %d", last, want)
		}
	}
}

func awaitKept(t *testing.T, want int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for ; kept(t) != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d neighbours are kept, want %d", kept(t), want)
		}
	}
}

// kept counts the neighbours that the kernel keeps for Millrace.
func kept(t *testing.T) int {
	t.Helper()
	keys, err := KeptNeighbours()
	must(t, err)
	return len(keys)
}
