// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/test/pathmtu"
	"github.com/millrace-lb/millrace/test/isolated"
)

// A flood cannot fill the socket, because the filter drops datagrams without the secret.
func TestReplyDuringFlood(t *testing.T) {
	const secret, many = 0x01020304, 20_000
	key := Key{1}
	for name, local := range map[string]netip.AddrPort{
		"IPv4": netip.MustParseAddrPort("127.0.81.1:47483"), "IPv6": netip.MustParseAddrPort("[::1]:47483"),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := openSocket(local, secret)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(local))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			send := func(b []byte) {
				t.Helper()
				if _, err := conn.Write(b); err != nil {
					t.Fatal(err)
				}
			}
			forged := message{kind: answer, from: 1, to: 2, nonce: secret << 32}.encode(key)
			for i := range many {
				// Some are too short for a nonce.
				send(forged[:messageSize-i%messageSize])
			}
			real := message{kind: answer, from: 1, to: 2, nonce: 7<<32 | secret}.encode(key)
			send(real[:])
			if got := s.dropped(); got != many {
				t.Errorf("%d datagrams were dropped, want the %d of the flood", got, many)
			}
			if got := s.dropped(); got != 0 {
				t.Errorf("%d drops were counted twice", got)
			}
			var b [messageSize + 1]byte
			n, _, ok := s.receive(b[:])
			if m, valid := decode(b[:n], []Key{key}); !ok || !valid || m.nonce != 7<<32|secret {
				t.Errorf("the answer was not received: %v, %+v", ok, m)
			}
		})
	}
}

// Forged ICMP errors do not lower the path MTU.
func TestProbesLearnNoPathMTU(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	pathmtu.Link(t)
	for local, remote := range map[netip.Addr]netip.Addr{pathmtu.Local4: pathmtu.Remote4, pathmtu.Local6: pathmtu.Remote6} {
		at := netip.AddrPortFrom(local, 47483)
		s, err := openSocket(at, 1)
		if err != nil {
			t.Fatal(err)
		}
		pathmtu.Forge(t, at, netip.AddrPortFrom(remote, Port))
		if mtu := pathmtu.Learned(t, remote); mtu != 0 {
			t.Errorf("the kernel learned a path MTU to %s: %d", remote, mtu)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
