// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
)

// receiver is a UDP socket at a port of the loopback addresses, with the filter of an admission.
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

// send sends a payload over the loopback interface.
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

// What no session takes never gets into the queue, and is counted.
func TestSocketFilter(t *testing.T) {
	known, far, stranger := netip.MustParseAddr("127.0.0.7"), netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("127.0.0.8")
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
		"known, of another discriminator":       {v4, known, 255, others.Append(nil), true},
		"known, off the link":                   {v4, known, 254, hello.Append(nil), false},
		"of several hops":                       {v4, far, 250, hello.Append(nil), true},
		"from too far":                          {v4, far, 249, hello.Append(nil), false},
		"stranger":                              {v4, stranger, 255, hello.Append(nil), false},
		"stranger with our discriminator":       {v4, stranger, 255, ours.Append(nil), true},
		"the same from too far":                 {v4, stranger, 249, ours.Append(nil), false},
		"too short":                             {v4, known, 255, []byte{1, 2, 3}, false},
		"IPv6":                                  {v6, netip.IPv6Loopback(), 254, hello.Append(nil), true},
		"IPv6, from too far":                    {v6, netip.IPv6Loopback(), 253, ours.Append(nil), false},
		"IPv6, stranger":                        {none, netip.IPv6Loopback(), 255, hello.Append(nil), false},
		"IPv6, stranger with our discriminator": {none, netip.IPv6Loopback(), 255, ours.Append(nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			fd, port := receiver(t, test.from.Is6(), test.admits)
			send(t, test.from, test.ttl, port, test.payload)
			// Over the loopback interface a packet is where it belongs when it has been sent.
			_, _, err := unix.Recvfrom(fd, make([]byte, largest), unix.MSG_DONTWAIT)
			if taken := err == nil; taken != test.taken {
				t.Errorf("taken: %t, want %t", taken, test.taken)
			}
			if dropped := drops(fd) == 1; dropped == test.taken {
				t.Errorf("%d drops are counted", drops(fd))
			}
		})
	}
}

// The filter of as many sessions as there can be is one that the kernel takes, 6.1 with its 20 KiB
// included, and admits only what has the TTL where the sources are too many.
func TestSocketFilterOfManySessions(t *testing.T) {
	for _, sources := range []int{mostSources, mostSources + 1, MaxSessions} {
		a := admission{sources: map[netip.Addr]uint8{}, discriminators: map[uint32]bool{}, ttl: sentTTL}
		for i := range sources {
			a.sources[netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(i >> 8), 15: byte(i)})] = sentTTL
		}
		for i := range uint32(MaxSessions) {
			a.discriminators[1000+i] = true
		}
		fd, port := receiver(t, true, a)
		send(t, netip.IPv6Loopback(), sentTTL, port, packet(bfd.Down, peers, 0).Append(nil))
		_, _, err := unix.Recvfrom(fd, make([]byte, largest), unix.MSG_DONTWAIT)
		if taken, want := err == nil, sources > mostSources; taken != want {
			t.Errorf("%d sources: a stranger's packet taken: %t, want %t", sources, taken, want)
		}
	}
}
