// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/socketfilter"
)

// receiver opens a UDP socket on the loopback interface with the filter of an admission.
func receiver(t *testing.T, v6 bool, a admission) (fd, port int) {
	t.Helper()
	fd, err := udpSocket(v6)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := admit(fd, a, v6); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, anyAddress(v6, 0)); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	switch at := bound.(type) {
	case *unix.SockaddrInet4:
		port = at.Port
	case *unix.SockaddrInet6:
		port = at.Port
	}
	return fd, port
}

func send(t *testing.T, from netip.Addr, ttl, port int, payload []byte) {
	t.Helper()
	v6 := from.Is6()
	fd, err := udpSocket(v6)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	level, option, to := unix.IPPROTO_IP, unix.IP_TTL, netip.MustParseAddr("127.0.0.1")
	if v6 {
		level, option, to = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, netip.IPv6Loopback()
	}
	if err := unix.SetsockoptInt(fd, level, option, ttl); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, socketAddress(from, v6, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, payload, 0, socketAddress(to, v6, port, 0)); err != nil {
		t.Fatal(err)
	}
}

// Packets for no session are never queued, but counted.
func TestSocketFilter(t *testing.T) {
	known, far, untrusted := netip.MustParseAddr("127.0.0.7"), netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("127.0.0.8")
	hello, ours, others := packet(bfd.Down, peers, 0), packet(bfd.Up, peers, own), packet(bfd.Up, peers, unknown)
	v4 := admission{sources: map[netip.Addr]uint8{known: 255, far: 250}, discriminators: map[uint32]bool{own: true, 1: true}, ttl: 250}
	v6 := admission{sources: map[netip.Addr]uint8{netip.MustParseAddr("::2"): 255, netip.IPv6Loopback(): 254}, discriminators: map[uint32]bool{own: true}, ttl: 254}
	none := admission{sources: map[netip.Addr]uint8{netip.MustParseAddr("2001:db8::1"): 255}, discriminators: map[uint32]bool{own: true}, ttl: 255}
	for name, test := range map[string]struct {
		admits  admission
		from    netip.Addr
		ttl     int
		payload []byte
		taken   bool
	}{
		"known":                                 {v4, known, 255, hello.Append(nil), true},
		"known peer, other discriminator":       {v4, known, 255, others.Append(nil), true},
		"known peer, not on the link":           {v4, known, 254, hello.Append(nil), false},
		"multihop":                              {v4, far, 250, hello.Append(nil), true},
		"TTL too low":                           {v4, far, 249, hello.Append(nil), false},
		"untrusted host":                        {v4, untrusted, 255, hello.Append(nil), false},
		"untrusted host with our discriminator": {v4, untrusted, 255, ours.Append(nil), true},
		"untrusted host with our discriminator, TTL too low": {v4, untrusted, 249, ours.Append(nil), false},
		"too short":            {v4, known, 255, []byte{1, 2, 3}, false},
		"IPv6":                 {v6, netip.IPv6Loopback(), 254, hello.Append(nil), true},
		"IPv6, TTL too low":    {v6, netip.IPv6Loopback(), 253, ours.Append(nil), false},
		"IPv6, untrusted host": {none, netip.IPv6Loopback(), 255, hello.Append(nil), false},
		"IPv6, untrusted host with our discriminator": {none, netip.IPv6Loopback(), 255, ours.Append(nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			fd, port := receiver(t, test.from.Is6(), test.admits)
			send(t, test.from, test.ttl, port, test.payload)
			// On the loopback interface a packet is delivered when send returns.
			_, _, err := unix.Recvfrom(fd, make([]byte, maxPacket), unix.MSG_DONTWAIT)
			if taken := err == nil; taken != test.taken {
				t.Errorf("accepted = %t, want %t", taken, test.taken)
			}
			if dropped := socketfilter.Drops(fd) == 1; dropped == test.taken {
				t.Errorf("%d drops were counted", socketfilter.Drops(fd))
			}
		})
	}
}

// The kernel accepts a replacement filter for any number of sessions, even with 20 KiB as in 6.1. Too many
// sessions reduce the filter to the TTL.
func TestSocketFilterOfManySessions(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %t", v6), func(t *testing.T) {
			loopback := netip.MustParseAddr("127.0.0.1")
			if v6 {
				loopback = netip.IPv6Loopback()
			}
			a := admission{sources: map[netip.Addr]uint8{}, discriminators: map[uint32]bool{}, ttl: sentTTL}
			fd, port := receiver(t, v6, a)
			for sessions := 1; sessions <= MaxSessions; sessions++ {
				// The kernel needs more instructions for words with the high bit set.
				octets := [16]byte{0: 0xff, 4: 0xff, 8: 0xff, 12: 0xff, 14: byte(sessions >> 8), 15: byte(sessions)}
				source := netip.AddrFrom16(octets)
				if !v6 {
					source = netip.AddrFrom4([4]byte(octets[12:]))
				}
				a.sources[source], a.discriminators[1<<31+uint32(sessions)] = sentTTL, true
				if err := admit(fd, a, v6); err != nil {
					t.Fatalf("%d sessions: %v", sessions, err)
				}
				if sessions != 40 && sessions != MaxSessions {
					continue
				}
				send(t, loopback, sentTTL, port, packet(bfd.Down, peers, 0).Append(nil))
				_, _, err := unix.Recvfrom(fd, make([]byte, maxPacket), unix.MSG_DONTWAIT)
				if taken, want := err == nil, sessions == MaxSessions; taken != want {
					t.Errorf("%d sessions: packet from an untrusted host accepted: %t, want %t", sessions, taken, want)
				}
			}
		})
	}
}
