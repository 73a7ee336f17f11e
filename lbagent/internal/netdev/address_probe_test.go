// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
)

// TestFindHolders checks that a host with an address is found by ARP and by Neighbor Discovery, that
// other hosts are not, and that the kernel's table is unchanged afterwards.
func TestFindHolders(t *testing.T) {
	f := newFar(t)
	index := f.connect(t, "up0", "198.51.100.2/24", "198.51.100.1/24", 1).Attrs().Index
	link, err := netlink.LinkByIndex(index)
	must(t, err)
	must(t, netlink.AddrAdd(link, mustParseAddr(t, "2001:db8:51::2/64")))
	other, err := f.LinkByName("up0")
	must(t, err)
	held := []string{"198.51.100.80/24", "2001:db8:51::80/64"}
	for _, address := range held {
		must(t, f.AddrAdd(other, mustParseAddr(t, address)))
	}
	near, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	defer near.Close()
	awaitAddresses(t, near, link)
	awaitAddresses(t, f.Handle, other)
	far := [6]byte(farMAC(1))
	key := func(address string) fib.NeighbourKey {
		return fib.NeighbourKey{Interface: index, Address: netip.MustParseAddr(address)}
	}
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT,
		IP: []byte{198, 51, 100, 90}, HardwareAddr: []byte{2, 0, 0, 0, 0, 90}}))
	asked := []fib.NeighbourKey{
		key("198.51.100.80"), key("2001:db8:51::80"), key("198.51.100.81"), key("2001:db8:51::81"), key("198.51.100.90"),
		{Interface: 1 << 20, Address: netip.MustParseAddr("198.51.100.80")},
	}
	want := map[fib.NeighbourKey][6]byte{asked[0]: far, asked[1]: far}
	for round := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		found, err := ProbeAddresses(ctx, asked)
		cancel()
		must(t, err)
		if len(found) != len(want) || found[asked[0]] != far || found[asked[1]] != far {
			t.Errorf("round %d: found %v, want %v", round, found, want)
		}
		// With a fresh entry, the kernel would answer without a probe.
		for _, key := range asked[:2] {
			must(t, useNeighbour(key))
		}
	}
	list, err := netlink.NeighList(index, netlink.FAMILY_V4)
	must(t, err)
	if !slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.State == netlink.NUD_PERMANENT && n.IP[3] == 90 }) {
		t.Errorf("the administrator's neighbor entry was removed: %v", list)
	}

	// After the holder has left, it must not be found in the kernel's table.
	for _, address := range held {
		must(t, f.AddrDel(other, mustParseAddr(t, address)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	found, err := ProbeAddresses(ctx, asked)
	must(t, err)
	if len(found) > 0 {
		t.Errorf("found %v after the host has left", found)
	}

	must(t, useNeighbour(key("198.51.100.1")))
	deadline := time.Now().Add(5 * time.Second)
	for {
		known, err := KnownNeighbours([]netip.Addr{netip.MustParseAddr("198.51.100.1")})
		must(t, err)
		if len(known) == 1 && slices.Equal(known[index], [][6]byte{far}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("neighbor entry of the router = %v, want %x", known, far)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// awaitAddresses waits until the kernel answers for the IPv6 addresses of a link. Even without duplicate
// address detection it starts asynchronously. Earlier solicitations are lost and repeated only after a
// second.
func awaitAddresses(t *testing.T, in *netlink.Handle, link netlink.Link) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		addresses, err := in.AddrList(link, netlink.FAMILY_V6)
		must(t, err)
		if !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("addresses of %s are still tentative: %v", link.Attrs().Name, addresses)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
