// SPDX-License-Identifier: Apache-2.0

package canary

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
	"github.com/millrace-lb/millrace/lbagent/test/pathmtu"
	"github.com/millrace-lb/millrace/test/isolated"
)

// TestSource checks that the kernel accepts the packets of a source with their checksums, and that a
// source receives answers.
func TestSource(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		t.Fatal(err)
	}
	// A packet socket's packets arrive here as from another host, with a local source address.
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/lo/accept_local", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	way := netdev.NextHop{Interface: loopback.Attrs().Index, MTU: loopback.Attrs().MTU}
	for _, ends := range [][2]string{{"198.51.100.2", "203.0.113.250"}, {"2001:db8::2", "2001:db8:1::250"}} {
		from, to := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		for _, address := range []netip.Addr{from, to} {
			prefix := &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())}
			if err := netlink.AddrAdd(loopback, &netlink.Addr{IPNet: prefix, Flags: unix.IFA_F_NODAD}); err != nil {
				t.Fatal(err)
			}
			awaitLocal(t, address)
		}
		exchange(t, way, from, to)
	}
}

// awaitLocal waits until the kernel accepts packets to an address: it adds the route of an IPv6 address
// asynchronously.
func awaitLocal(t *testing.T, address netip.Addr) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteGet(address.AsSlice())
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has no local route: %v, error %v", address, routes, err)
		}
	}
}

func exchange(t *testing.T, way netdev.NextHop, from, to netip.Addr) {
	t.Helper()
	receiver, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, probe.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	type taken struct {
		at      int
		from    netip.AddrPort
		payload []byte
	}
	answers := make(chan taken, 1)
	s, err := openSource(from, func(_ netip.Addr, at int, from netip.AddrPort, payload []byte) {
		answers <- taken{at, from, slices.Clone(payload)}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	received := make([]byte, maxPacket)
	for at := range canary.Ports {
		// Odd and even lengths, up to a full packet.
		sent := bytes.Repeat([]byte{byte(at), 0xff}, 23*at+5)[:23*at+1]
		if err := s.send(way, at, to, sent); err != nil {
			t.Fatal(err)
		}
		if err := receiver.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, sender, err := receiver.ReadFromUDPAddrPort(received)
		if err != nil {
			t.Fatalf("port %d of %s: %v", at, from, err)
		}
		if !bytes.Equal(received[:n], sent) || sender.Addr().Unmap() != from {
			t.Errorf("received %d bytes from %s, want %d from %s", n, sender, len(sent), from)
		}
		if _, err := receiver.WriteToUDPAddrPort(sent, sender); err != nil {
			t.Fatal(err)
		}
		select {
		case answer := <-answers:
			if answer.at != at || answer.from != netip.AddrPortFrom(to, probe.Port) || !bytes.Equal(answer.payload, sent) {
				t.Errorf("port %d received %d bytes from %s, want them on port %d", answer.at, len(answer.payload), answer.from, at)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("port %d of %s received nothing", at, from)
		}
	}
}

// TestSourcesLearnNoPathMTU checks that forged ICMP errors about probes do not lower the path MTU to
// another host.
func TestSourcesLearnNoPathMTU(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	pathmtu.Link(t)
	for local, remote := range map[netip.Addr]netip.Addr{pathmtu.Local4: pathmtu.Remote4, pathmtu.Local6: pathmtu.Remote6} {
		s, err := openSource(local, func(netip.Addr, int, netip.AddrPort, []byte) {})
		if err != nil {
			t.Fatal(err)
		}
		pathmtu.Forge(t, netip.AddrPortFrom(local, s.numbers[0]), netip.AddrPortFrom(remote, probe.Port))
		if mtu := pathmtu.Learned(t, remote); mtu != 0 {
			t.Errorf("the kernel learned a path MTU to %s: %d", remote, mtu)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
