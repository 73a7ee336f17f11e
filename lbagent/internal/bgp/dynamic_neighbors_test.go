// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func TestDynamicNeighbors(t *testing.T) {
	at := netip.MustParseAddr
	c := newDynamicNeighbors()
	ranges := []model.Range{
		{Name: "open", Prefix: netip.MustParsePrefix("198.51.100.0/24"), MaxSessions: 2},
		{Name: "shut", Prefix: netip.MustParsePrefix("203.0.113.0/24"), MaxSessions: 2, Session: model.Peer{PasswordSecret: secret}},
	}
	c.want(ranges, nil)
	if sessions := c.sessions(); len(sessions) != 1 || sessions[0].Peer != "open" || !strings.Contains(sessions[0].Message, "198.51.100.0/24") {
		t.Errorf("before the first router: %+v", sessions)
	}
	for _, step := range []struct {
		router string
		taken  bool
	}{
		{"198.51.100.1", true}, {"198.51.100.2", true}, {"198.51.100.1", true}, {"198.51.100.3", false},
		{"203.0.113.1", false}, {"2001:db8::1", false},
	} {
		if got := c.admit(at(step.router), incoming{}); got != step.taken {
			t.Errorf("admit(%s) = %t", step.router, got)
		}
	}
	if full := c.sessions(); len(full) != 1 || full[0].Peer != "open/198.51.100.3" || !strings.Contains(full[0].Message, "2 routers") {
		t.Errorf("after a rejected router: sessions %+v", full)
	}
	c.want(ranges, map[string]string{secret: password})
	if !c.admit(at("203.0.113.1"), incoming{}) {
		t.Error("a router with the password of its range was not admitted")
	}
}

// An entry is retained for the duration of the longest session, between half a minute and ten minutes.
func TestPlaceIsKept(t *testing.T) {
	seen := time.Unix(1e9, 0)
	for lasted, want := range map[time.Duration]time.Duration{
		0: probationTime, time.Second: probationTime, 3 * time.Minute: 3 * time.Minute, time.Hour: maxReservation,
	} {
		if got := (&dynamicNeighbor{seen: seen, lasted: lasted}).expiry().Sub(seen); got != want {
			t.Errorf("after a session of %s, the entry is retained for %s, want %s", lasted, got, want)
		}
	}
	s := New(Config{})
	s.neighbors.want([]model.Range{{Name: "open", Prefix: netip.MustParsePrefix("198.51.100.0/24"), MaxSessions: 2}}, nil)
	untrusted, router := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	for _, one := range []netip.Addr{untrusted, router, untrusted} {
		if !s.neighbors.admit(one, incoming{}) {
			t.Errorf("%s was not admitted", one)
		}
	}
	past := time.Now().Add(-time.Minute)
	s.neighbors.routers[router].seen, s.neighbors.routers[router].lasted = past, time.Hour
	// Another OPEN does not extend the retention of an entry.
	s.neighbors.routers[untrusted].seen = past
	s.neighbors.admit(untrusted, incoming{})
	if got := s.DynamicNeighbors(); !slices.Equal(got, []netip.Addr{router}) {
		t.Errorf("DynamicNeighbors = %v, want only the router", got)
	}
	if !s.neighbors.admit(netip.MustParseAddr("198.51.100.3"), incoming{}) {
		t.Error("the entry of the untrusted host was not released")
	}
	s.neighbors.routers[router].seen = past.Add(-maxReservation)
	if got := s.DynamicNeighbors(); slices.Contains(got, router) {
		t.Errorf("DynamicNeighbors = %v ten minutes later", got)
	}
}

// Connections without an OPEN are bounded to one per router and maxUnproven in total.
func TestUnproven(t *testing.T) {
	c := newDynamicNeighbors()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	from := func(last int) {
		t.Helper()
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(last))}}).Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		near, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.addUnproven(near.(*net.TCPConn))
	}
	for range 3 {
		from(1)
	}
	if len(c.unproven) != 1 {
		t.Errorf("%d unproven connections of one router", len(c.unproven))
	}
	for last := range maxUnproven {
		from(2 + last)
	}
	if len(c.unproven) != maxUnproven || addrPort(c.unproven[0].RemoteAddr()).Addr().As4()[3] != 2 {
		t.Errorf("%d unproven connections, the oldest from %s", len(c.unproven), c.unproven[0].RemoteAddr())
	}
}

// Routers of a range connect with the password of the range. An LBPeer with the same address takes over the
// session.
func TestRange(t *testing.T) {
	for name, start := range connecting(" neighbor 198.51.100.2 password right\n", `password "right";`) {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			p := l.speaker("fresh")
			shared := passivePeer()
			shared.PasswordSecret = secret
			want := Want{
				RouterID:  nodeIPv4,
				Ranges:    []model.Range{{Name: peerName, Prefix: netip.MustParsePrefix("198.51.100.0/28"), MaxSessions: 1, Session: shared}},
				Passwords: map[string]string{secret: "wrong"},
			}
			p.set(want)
			l.awaitWithout(40*time.Second, "the kernel drops what has another password", func() bool {
				out, err := exec.Command("ip", "netns", "exec", l.NodeSpace, "nstat", "-asz", "TcpExtTCPMD5Failure").Output()
				fields := strings.Fields(string(out))
				return err == nil && len(fields) > 1 && fields[len(fields)-2] != "0"
			})
			if found := p.call(nil).DynamicNeighbors; len(found) > 0 {
				t.Errorf("%v connected with a wrong password", found)
			}
			want.Passwords[secret] = password
			p.set(want)
			l.awaitWithout(40*time.Second, "the router has connected", func() bool {
				return slices.Equal(p.call(nil).DynamicNeighbors, []netip.Addr{routerIPv4})
			})
			peer := passivePeer()
			peer.Name, peer.OfRange, peer.PasswordSecret = peerName+"/"+routerIPv4.String(), peerName, secret
			want.Peers, want.Routes = []model.Peer{peer}, announce.Routes{peer.Name: {testRoute(vip4)}}
			p.set(want)
			l.awaitWithout(40*time.Second, "up", func() bool { return isUp(p.session(peer.Name)) })
			if l.Router != nil {
				l.awaitRoutes(20*time.Second, map[string]string{vip4: nodeIPv4.String()})
			}
			if found := p.call(nil).DynamicNeighbors; !slices.Equal(found, []netip.Addr{routerIPv4}) {
				t.Errorf("DynamicNeighbors = %v, want the router", found)
			}

			before := p.session(peer.Name)
			want.Peers, want.Ranges = []model.Peer{testPeer()}, nil
			want.Routes = announce.Routes{peerName: {testRoute(vip4)}}
			want.Peers[0].PasswordSecret = secret
			p.set(want)
			if after := p.session(peerName); !isUp(after) || !after.Since.Equal(before.Since) {
				t.Errorf("session of the range %+v, then of the LBPeer %+v", before, after)
			}
			if found := p.call(nil).DynamicNeighbors; len(found) > 0 {
				t.Errorf("DynamicNeighbors = %v without a range", found)
			}
		})
	}
}

// awaitWithout is Await for routers other than FRR.
func (l *lab) awaitWithout(limit time.Duration, what string, condition func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(limit); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("timeout after %s: %s", limit, what)
		}
	}
}
