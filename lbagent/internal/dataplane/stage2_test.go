// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// A loss of all flows of a node, repeated on any node, breaks no connection, active or later.
func TestFlowsWiped(t *testing.T) {
	n := startNetwork(t, false)
	sessions := n.openSessions(t, 12)
	for _, node := range n.nodes {
		var wait sync.WaitGroup
		for i, s := range sessions {
			wait.Go(func() {
				for range 3 {
					if err := s.exchange(300_000, 300_000); err != nil {
						t.Errorf("%s wiped: connection %d, served by %s: %v", node.name, i, s.pod, err)
						return
					}
				}
			})
		}
		transfers := make(chan struct{})
		go func() { wait.Wait(); close(transfers) }()
		for wiped := 0; ; wiped++ {
			forgetFlows(t, node.dataplane)
			select {
			case <-transfers:
			case <-time.After(100 * time.Millisecond):
				continue
			}
			t.Logf("%s: entries wiped %d times", node.name, wiped)
			break
		}
		exchangeAll(t, sessions)
	}
}

// hostNetwork makes the second node itself, like a pod with hostNetwork, the only endpoint.
func hostNetwork(t *testing.T) (*network, pod) {
	t.Helper()
	n := newNetwork(t)
	second := n.nodes[1]
	host := pod{name: second.name, ipv4: second.addr.IPv4, ipv6: second.addr.IPv6}
	serve(t, host)
	second.pods = []pod{host}
	for _, node := range n.nodes {
		want := n.state(node)
		for row := range *want.NodeTables[1] {
			(*want.NodeTables[1])[row].Primary = second.id
		}
		n.start(t, node, want)
	}
	return n, host
}

// A hostNetwork pod receives packets and answers as the VIP. Connections to the node's port without the VIP
// are answered by the node.
func TestHostNetworkEndpoint(t *testing.T) {
	n, host := hostNetwork(t)
	for vip, direct := range map[netip.Addr]netip.Addr{vip4: host.ipv4, vip6: host.ipv6} {
		t.Run(vip.String(), func(t *testing.T) {
			to, past := netip.AddrPortFrom(vip, clusterPort), netip.AddrPortFrom(direct, podPort)
			var sessions []*session
			for range 5 {
				sessions = append(sessions, connect(t, to), connect(t, past))
			}
			exchangeAll(t, sessions)
			for range 5 {
				askUDP(t, to, 1000)
				askUDP(t, past, 1000)
			}
			exchangeAll(t, sessions)
		})
	}
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
}

// A client's direct connection with an endpoint survives packets to the VIP from the same port, also spoofed
// ones.
func TestDirectConnectionSurvivesVIP(t *testing.T) {
	_, host := hostNetwork(t)
	for vip, direct := range map[netip.Addr]netip.Addr{vip4: host.ipv4, vip6: host.ipv6} {
		t.Run(vip.String(), func(t *testing.T) {
			port := nextPort()
			s := connectBy(t, sharedPort(port), netip.AddrPortFrom(direct, podPort))
			if err := s.exchange(1000, 1000); err != nil {
				t.Fatal(err)
			}
			inNamespace(t, "client", func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				conn, err := sharedPort(port).DialContext(ctx, "tcp", netip.AddrPortFrom(vip, clusterPort).String())
				if err == nil {
					t.Error("two connections to one endpoint share address and port")
					return conn.Close()
				}
				return nil
			})
			if err := s.exchange(100_000, 100_000); err != nil {
				t.Errorf("connection without the VIP: %v", err)
			}
		})
	}
}

// sharedPort dials from a port that may be shared.
func sharedPort(port int) *net.Dialer {
	return &net.Dialer{
		LocalAddr: &net.TCPAddr{Port: port},
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			})
			if err != nil {
				return err
			}
			return failed
		},
	}
}

// Frontend keys for the egress program are present after a resize.
func TestFrontendKeysResized(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	keys := map[forwarding.FrontendID]forwarding.FrontendKey{
		3: {VIP: vip4, Port: 80, Protocol: unix.IPPROTO_TCP},
		7: {VIP: vip6, Port: 443, Protocol: unix.IPPROTO_UDP},
	}
	for id, key := range keys {
		apply(t, d, forwarding.PutVIP{Address: key.VIP}, forwarding.PutFrontend{Key: key, Frontend: forwarding.Frontend{ID: id}})
	}
	cfg.Limits.Frontends *= 2
	resized := openDataplane(t, cfg)
	if kind := resized.Adoption().Kind; kind != Resized {
		t.Fatalf("adoption = %s, want Resized", kind)
	}
	for id, key := range keys {
		var got bpf.DatapathFrontendKey6
		if err := resized.maps.FrontendKeys.Lookup(uint32(id), &got); err != nil || got != encodeFrontendKey6(key) {
			t.Errorf("frontend %d: %+v, %v; want %s", id, got, err, key)
		}
	}
}
