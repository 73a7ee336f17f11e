// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const refusedPort = 82

// A VIP behaves like a host: it answers ping, rejects ports without endpoint, and accepts packets with the
// last TTL. An unassigned address of the pool is silent and not returned to the router.
func TestHost(t *testing.T) {
	n := newNetwork(t)
	for _, pod := range testPods {
		serve(t, pod)
	}
	pool4, pool6 := netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:cafe::/64")
	for _, node := range n.nodes {
		want := n.state(node)
		for _, prefix := range []netip.Prefix{pool4, pool6} {
			want.SourceRanges[forwarding.SourceRange{Set: forwarding.Pools, Prefix: prefix}] = struct{}{}
		}
		for _, prefix := range []string{"198.51.101.0/24", "2001:db8:cafe::/48"} {
			source := forwarding.SourceRange{Set: forwarding.Aggregates, Prefix: netip.MustParsePrefix(prefix)}
			want.SourceRanges[source] = struct{}{}
		}
		id := forwarding.FrontendID(40)
		for _, vip := range []netip.Addr{vip4, vip6} {
			for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				id++
				want.Frontends[forwarding.FrontendKey{VIP: vip, Port: refusedPort, Protocol: protocol}] =
					forwarding.Frontend{ID: id, Refuses: true}
			}
		}
		n.start(t, node, want)
	}
	for vip, nobody := range map[netip.Addr]netip.Addr{vip4: ip("203.0.113.77"), vip6: ip("2001:db8:cafe::77")} {
		t.Run("ping "+vip.String(), func(t *testing.T) { checkPing(t, vip) })
		t.Run("refused "+vip.String(), func(t *testing.T) { checkRefused(t, netip.AddrPortFrom(vip, refusedPort)) })
		t.Run("last TTL "+vip.String(), func(t *testing.T) { checkLastTTL(t, netip.AddrPortFrom(vip, clusterPort)) })
		t.Run("fragments "+vip.String(), func(t *testing.T) {
			for range 8 {
				checkFragments(t, netip.AddrPortFrom(vip, clusterPort))
				checkFragments(t, netip.AddrPortFrom(vip, localPort))
			}
		})
		t.Run("unassigned "+nobody.String(), func(t *testing.T) { n.checkUnassigned(t, nobody, "pool_unassigned") })
	}
	for _, nobody := range []netip.Addr{ip("198.51.101.77"), ip("2001:db8:cafe:1::77")} {
		t.Run("of an aggregate "+nobody.String(), func(t *testing.T) { n.checkUnassigned(t, nobody, "aggregate_unassigned") })
	}
}

// checkPing sends echo requests until a few were answered.
func checkPing(t *testing.T, vip netip.Addr) {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if vip.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	inNamespace(t, "client", func() error {
		conn, err := net.DialIP(network, nil, &net.IPAddr{IP: vip.AsSlice()})
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		for sequence := range byte(3) {
			// The kernel fills in the checksum of ICMPv6.
			message := []byte{request, 0, 0, 0, 0x12, 0x34, 0, sequence, 'p', 'i', 'n', 'g'}
			if vip.Is4() {
				sum := internetChecksum(message)
				message[2], message[3] = byte(sum>>8), byte(sum)
			}
			if _, err := conn.Write(message); err != nil {
				return err
			}
			answer := make([]byte, 1500)
			for got := false; !got; {
				// Read would include the IPv4 header.
				size, _, err := conn.ReadFrom(answer)
				if err != nil {
					return fmt.Errorf("ping %s: %w", vip, err)
				}
				got = size == len(message) && answer[0] == reply && slices.Equal(answer[4:size], message[4:])
			}
		}
		return nil
	})
}

func internetChecksum(message []byte) uint16 {
	var sum uint32
	for i := 0; i < len(message); i += 2 {
		sum += uint32(message[i])<<8 | uint32(message[i+1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func checkRefused(t *testing.T, to netip.AddrPort) {
	inNamespace(t, "client", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", to.String())
		if err == nil {
			conn.Close()
			return fmt.Errorf("connected to %s", to)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("connect to %s: %w, want refused", to, err)
		}
		return nil
	})
	conn := dialUDP(t, to)
	defer conn.Close()
	if _, err := askAgain(conn, 100); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("datagram to %s: %v, want ECONNREFUSED", to, err)
	}
}

func checkLastTTL(t *testing.T, to netip.AddrPort) {
	conn := dialUDP(t, to)
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if to.Addr().Is4() {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 2)
		} else {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 2)
		}
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	if _, err := askAgain(conn, 100); err != nil {
		t.Error(err)
	}
}

// checkFragments exchanges fragmented datagrams. The first may exceed the path MTU to the other node, which
// the client is notified of.
func checkFragments(t *testing.T, to netip.AddrPort) {
	conn := dialUDP(t, to)
	defer conn.Close()
	message, answer := make([]byte, 4000), make([]byte, maxDatagram)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(message); err != nil {
			continue
		}
		if n, err := conn.Read(answer); err == nil {
			if _, body, _ := bytes.Cut(answer[:n], []byte("\n")); !bytes.Equal(body, message) {
				t.Fatalf("%s: received %d bytes, want %d", to, len(body), len(message))
			}
			return
		}
	}
	t.Errorf("%s: no reply to a fragmented datagram", to)
}

// checkUnassigned sends to an unassigned address routed to the node: the packet is dropped exactly once and
// not returned to the router.
func (n *network) checkUnassigned(t *testing.T, nobody netip.Addr, reason string) {
	node := n.nodes[0]
	via := node.addr.IPv4
	if nobody.Is6() {
		via = node.addr.IPv6
	}
	in(t, "router", fmt.Sprintf("route replace %s via %s", nobody, via))
	conn := dialUDP(t, netip.AddrPortFrom(nobody, clusterPort))
	defer conn.Close()
	before := counters(t, node).Drops[reason]
	for sent := uint64(1); sent <= 3; sent++ {
		if _, err := conn.Write([]byte("nobody")); err != nil {
			t.Fatalf("datagram %d to %s: %v, want no response", sent, nobody, err)
		}
		await(t, fmt.Sprintf("each of %d datagrams to %s is dropped once", sent, nobody), func() bool {
			return counters(t, node).Drops[reason]-before == sent
		})
	}
}
